//! Fragments that are made from others by adding up planes.

use crate::BLOCK;
use crate::field::planes;
use crate::matrix::Rows;

/// Bytes in a plane of a block.
const PLANE: usize = 64;
/// Planes in a block, one for each bit of an element.
const PLANES: usize = BLOCK / PLANE;

/// How some fragments are made from others: for each plane of each, which planes of those are added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Combination {
    inputs: usize,
    outputs: usize,
    /// For each plane of each output, one after the other: where its planes end in `sources`.
    ends: Vec<usize>,
    /// Planes of inputs: which input, and where in a block the plane begins.
    sources: Vec<(u8, u16)>,
    coefficients: Rows,
}

impl Combination {
    /// That with these coefficients: a row for each output, in it one for each input.
    pub(crate) fn new(coefficients: &Rows) -> Self {
        let (mut ends, mut sources) = (Vec::new(), Vec::new());
        for row in coefficients {
            for plane in 0..PLANES {
                for (input, by) in row.iter().enumerate() {
                    let chosen = planes(*by, plane);
                    let is_chosen = |q: &usize| chosen >> q & 1 == 1;
                    sources.extend((0..PLANES).filter(is_chosen).map(|q| (input as u8, (q * PLANE) as u16)));
                }
                ends.push(sources.len());
            }
        }
        let inputs = coefficients.first().map_or(0, Vec::len);
        Self { inputs, outputs: coefficients.len(), ends, sources, coefficients: coefficients.clone() }
    }

    /// The coefficients: a row for each output, in it one for each input.
    #[must_use]
    pub fn coefficients(&self) -> &[Vec<u8>] {
        &self.coefficients
    }

    /// Makes whole fragments. Whatever was in `outputs` is overwritten.
    ///
    /// # Panics
    ///
    /// When there are not as many inputs and outputs as the combination has, or when they are not whole blocks, all of one length.
    pub fn make(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
        let length = inputs.first().map_or(0, |input| input.len());
        assert_eq!((inputs.len(), outputs.len()), (self.inputs, self.outputs), "as many as the combination has");
        assert_eq!(length % BLOCK, 0, "whole blocks");
        let is_alike = inputs.iter().all(|i| i.len() == length) && outputs.iter().all(|o| o.len() == length);
        assert!(is_alike, "all of one length");
        let mut blocks: Vec<&[u8; BLOCK]> = Vec::with_capacity(self.inputs);
        for block in 0..length / BLOCK {
            blocks.clear();
            blocks.extend(inputs.iter().filter_map(|input| input.as_chunks().0.get(block)));
            let mut begin = 0;
            for (output, ends) in outputs.iter_mut().zip(self.ends.chunks_exact(PLANES)) {
                let output: &mut [[u8; PLANE]] = output[block * BLOCK..][..BLOCK].as_chunks_mut().0;
                for (plane, end) in output.iter_mut().zip(ends) {
                    *plane = sum(&blocks, &self.sources[begin..*end]);
                    begin = *end;
                }
            }
        }
    }

    /// Adds what one input contributes with some of its bytes: `bytes`, which begin at byte `at` of the input. When all bytes of all
    /// inputs were added once to `outputs` that were zeros, in whatever order, these are what [`make`](Self::make) makes.
    ///
    /// # Panics
    ///
    /// When there is no such input, or when the outputs are not as many as the combination has, and as long as the bytes reach.
    pub fn add(&self, input: usize, at: usize, bytes: &[u8], outputs: &mut [&mut [u8]]) {
        assert_eq!(outputs.len(), self.outputs, "as many as the combination has");
        for (output, row) in outputs.iter_mut().zip(&self.coefficients) {
            let chosen: [u8; PLANES] = core::array::from_fn(|plane| planes(row[input], plane));
            let mut rest = at..at + bytes.len();
            // Plane by plane: what of one is among the bytes goes to the same places of others of its block.
            while !rest.is_empty() {
                let (block, from, within) = (rest.start / BLOCK, rest.start % BLOCK / PLANE, rest.start % PLANE);
                let length = (PLANE - within).min(rest.len());
                let part = &bytes[rest.start - at..][..length];
                for (plane, _) in chosen.iter().enumerate().filter(|(_, planes)| *planes >> from & 1 == 1) {
                    let place = &mut output[block * BLOCK + plane * PLANE + within..][..length];
                    place.iter_mut().zip(part).for_each(|(sum, byte)| *sum ^= byte);
                }
                rest.start += length;
            }
        }
    }
}

/// The sum of these planes of a block.
fn sum(blocks: &[&[u8; BLOCK]], sources: &[(u8, u16)]) -> [u8; PLANE] {
    let mut sum = [0_u8; PLANE];
    for (input, at) in sources {
        let plane: &[u8] = &blocks[usize::from(*input)][usize::from(*at)..][..PLANE];
        sum.iter_mut().zip(plane).for_each(|(sum, byte)| *sum ^= byte);
    }
    sum
}
