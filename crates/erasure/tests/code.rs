//! Any fragments that are as many as those of data give the others back.

use erasure::{BLOCK, Code, FRAGMENTS, UnknownCode};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;

/// All fragments of this data.
fn encoded(code: Code, data: &[u8]) -> Vec<Vec<u8>> {
    let each = code.fragment_len(data.len());
    let mut fragments: Vec<Vec<u8>> = (0..code.data()).map(|n| data[code.range(n, data.len())].to_vec()).collect();
    fragments.iter_mut().for_each(|fragment| fragment.resize(each, 0));
    let mut parity = vec![vec![0xaa; each]; code.parity()];
    let inputs: Vec<&[u8]> = fragments.iter().map(Vec::as_slice).collect();
    code.encoding().make(&inputs, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
    fragments.extend(parity);
    fragments
}

fn codes() -> impl Iterator<Item = Code> {
    (2..FRAGMENTS as u8).flat_map(|data| (1..FRAGMENTS as u8).filter_map(move |parity| Code::new(data, parity)))
}

fn code() -> impl Strategy<Value = Code> {
    proptest::sample::select(codes().collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn any_as_many_as_data_give_the_others((code, from) in code().prop_flat_map(|code| {
        let numbers = (0..code.fragments()).collect::<Vec<_>>();
        (Just(code), subsequence(numbers, code.data()).prop_shuffle())
    }), data in vec(any::<u8>(), 1..9_000)) {
        let fragments = encoded(code, &data);
        let lost: Vec<usize> = (0..code.fragments()).filter(|n| !from.contains(n)).collect();
        let decoding = code.decoding(&from, &lost).expect("they are enough");
        let inputs: Vec<&[u8]> = from.iter().map(|n| fragments[*n].as_slice()).collect();
        let mut made = vec![vec![0x55; fragments[0].len()]; lost.len()];
        decoding.make(&inputs, &mut made.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        for (n, made) in lost.iter().zip(&made) {
            prop_assert!(*made == fragments[*n], "{code}: {n} from {from:?}");
        }
        let mut joined: Vec<u8> = fragments[..code.data()].concat();
        joined.truncate(data.len());
        prop_assert_eq!(joined, data);
    }

    /// As in a network: fragments come in ranges of any length, in any order.
    #[test]
    fn what_passes_in_parts_adds_up(code in code(), data in vec(any::<u8>(), 1..6_000), cuts in vec(1_usize..1_500, 1..9), turn in any::<usize>()) {
        let fragments = encoded(code, &data);
        let each = fragments[0].len();
        let mut parts: Vec<(usize, usize, usize)> = Vec::new();
        for input in 0..code.data() {
            let (mut at, mut cuts) = (0, cuts.iter().cycle());
            while at < each {
                let end = each.min(at + cuts.next().expect("it goes round"));
                parts.push((input, at, end));
                at = end;
            }
        }
        let turn = turn % parts.len();
        parts.rotate_left(turn);
        let mut parity = vec![vec![0; each]; code.parity()];
        for (input, at, end) in parts {
            let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
            code.encoding().add(input, at, &fragments[input][at..end], &mut outputs);
        }
        prop_assert!(parity == fragments[code.data()..]);
    }
}

/// Every choice of what is lost, for the codes that people use.
#[test]
fn whatever_is_lost_comes_back() {
    for code in ["2+1", "3+2", "4+2", "6+3", "8+3"].map(|text| text.parse::<Code>().expect("it is one")) {
        let data: Vec<u8> = (0..code.data() * BLOCK).map(|n| ((n * 131) >> 3) as u8).collect();
        let fragments = encoded(code, &data);
        let mut choices = 0;
        for chosen in 0_u32..1 << code.fragments() {
            if chosen.count_ones() as usize != code.data() {
                continue;
            }
            let (from, lost): (Vec<usize>, Vec<usize>) = (0..code.fragments()).partition(|n| chosen >> n & 1 == 1);
            let inputs: Vec<&[u8]> = from.iter().map(|n| fragments[*n].as_slice()).collect();
            let mut made = vec![vec![0; BLOCK]; lost.len()];
            let decoding = code.decoding(&from, &lost).expect("they are enough");
            decoding.make(&inputs, &mut made.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
            assert!(lost.iter().zip(&made).all(|(n, made)| *made == fragments[*n]), "{code}: {lost:?} from {from:?}");
            choices += 1;
        }
        assert!(choices >= 3, "{code}: {choices}");
    }
}

#[test]
fn the_first_parity_is_plain_xor() {
    for code in codes() {
        assert!(code.encoding().coefficients()[0].iter().all(|c| *c == 1), "{code}");
    }
    let fragments = encoded("2+1".parse().expect("it is one"), &[0x5a; 2 * BLOCK]);
    assert!(fragments[2].iter().all(|byte| *byte == 0), "equal fragments cancel out");
}

#[test]
fn codes_are_written_as_people_write_them() {
    let code: Code = "4+2".parse().expect("it is one");
    assert_eq!((code.data(), code.parity(), code.fragments(), code.to_string()), (4, 2, 6, "4+2".to_owned()));
    for wrong in ["", "4", "+", "4+", "1+1", "4+0", "04+2", "4+2+1", "4 + 2", "+4+2", "15+2", "255+255"] {
        assert_eq!(wrong.parse::<Code>(), Err(UnknownCode), "{wrong}");
    }
    assert_eq!(codes().count(), 105);
}

#[test]
fn fragments_cover_the_data() {
    for (code, length) in codes().flat_map(|code| [1, 511, 512, 513, 4_096, 70_001].map(|length| (code, length))) {
        let each = code.fragment_len(length);
        assert!(each % BLOCK == 0 && each * code.data() >= length);
        let ranges: Vec<_> = (0..code.fragments()).map(|n| code.range(n, length)).collect();
        assert!(ranges[code.data()..].iter().all(std::ops::Range::is_empty));
        assert_eq!((ranges[0].start, ranges[code.data() - 1].end), (0, length));
        assert!(ranges.windows(2).all(|two| two[0].end == two[1].start || two[1].is_empty()));
    }
}

#[test]
fn what_is_too_little_is_refused() {
    let code: Code = "4+2".parse().expect("it is one");
    for from in [&[0, 1, 2][..], &[0, 1, 2, 2], &[0, 1, 2, 6], &[0, 1, 2, 3, 4]] {
        assert!(code.decoding(from, &[5]).is_none(), "{from:?}");
    }
    assert!(code.decoding(&[0, 1, 2, 3], &[6]).is_none());
}
