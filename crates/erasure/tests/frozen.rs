//! What is kept by a code stays readable: coefficients and layout are those of the first version.

use erasure::Code;

/// Something short that two sequences of bytes hardly ever share.
fn digest<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u64 {
    let fold = |digest: u64, byte: &u8| (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, fold)
}

#[test]
fn coefficients_are_those_of_the_first_version() {
    let coefficients = |code: &str| code.parse::<Code>().map(|code| code.encoding().coefficients().to_vec());
    assert_eq!(coefficients("2+1"), Ok(vec![vec![1, 1]]));
    assert_eq!(coefficients("4+2"), Ok(vec![vec![1; 4], vec![1, 4, 8, 142]]));
    assert_eq!(
        coefficients("8+3"),
        Ok(vec![vec![1; 8], vec![8, 6, 24, 140, 100, 66, 1, 143], vec![1, 6, 143, 25, 35, 48, 45, 132]])
    );
    let all = (2..16).flat_map(|data| (1..16).filter_map(move |parity| Code::new(data, parity)));
    let rows: Vec<Vec<u8>> = all.flat_map(|code| code.encoding().coefficients().to_vec()).collect();
    assert_eq!(digest(rows.iter().flatten()), 4_384_077_080_139_574_865);
}

#[test]
fn parity_is_laid_out_as_in_the_first_version() {
    let data: Vec<u8> = (0..8 * 1_024_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let code: Code = "8+3".parse().expect("it is one");
    let inputs: Vec<&[u8]> = data.chunks(1_024).collect();
    let mut parity = vec![vec![0; 1_024]; 3];
    code.encoding().make(&inputs, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
    assert_eq!(
        parity.iter().map(digest).collect::<Vec<_>>(),
        [4_980_706_476_788_259_374, 10_484_600_328_082_818_561, 3_957_350_331_226_802_635]
    );
}
