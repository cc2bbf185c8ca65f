//! The coefficients: which multiple of which fragment goes into which other.

use crate::field::{inverse, mul, weight};

/// Rows of coefficients, one for each fragment that is made, with a column for each that it is made from.
pub(crate) type Rows = Vec<Vec<u8>>;

/// The rows of the fragments of parity. From a Cauchy matrix, 1/(x+y) for different x and y, of which every square part can be
/// inverted; that stays so when rows and columns are multiplied. So each column is divided by its first element, which makes the first
/// fragment of parity plain XOR, and each other row by one of its own. Of all columns, and of all these divisors, those count that
/// leave the fewest planes to add.
pub(crate) fn parity(data: usize, parity: usize) -> Rows {
    let divided = |by: u8, line: &[u8]| line.iter().map(|c| mul(*c, inverse(by))).collect::<Vec<u8>>();
    let cost = |line: &[u8]| line.iter().map(|c| weight(*c)).sum::<u32>();
    let column = |y: usize| {
        let elements: Vec<u8> = (0..parity).map(|x| inverse((x ^ y) as u8)).collect();
        divided(elements[0], &elements)
    };
    let mut columns: Vec<Vec<u8>> = (parity..1 << 8).map(column).collect();
    columns.sort_by_key(|column| cost(column));
    columns.truncate(data);
    let lightest =
        |row: Vec<u8>| row.iter().map(|by| divided(*by, &row)).min_by_key(|row| cost(row)).unwrap_or_default();
    (0..parity).map(|n| lightest(columns.iter().map(|column| column[n]).collect())).collect()
}

/// The rows of the fragments `wanted` when they are made from the fragments `from`, as many different ones as there are of data.
pub(crate) fn of_others(data: usize, parity_count: usize, from: &[usize], wanted: &[usize]) -> Rows {
    let parity = parity(data, parity_count);
    let row = |fragment: &usize| match fragment.checked_sub(data) {
        Some(n) => parity[n].clone(),
        None => (0..data).map(|column| u8::from(column == *fragment)).collect(),
    };
    let inverted = inverted(from.iter().map(row).collect());
    let through = |row: Vec<u8>| {
        let column = |c: usize| row.iter().zip(&inverted).fold(0, |sum, (by, inner)| sum ^ mul(*by, inner[c]));
        (0..data).map(column).collect()
    };
    wanted.iter().map(row).map(through).collect()
}

/// The inverse of a square matrix that has one, by elimination.
fn inverted(mut rows: Rows) -> Rows {
    let size = rows.len();
    for (n, row) in rows.iter_mut().enumerate() {
        row.extend((0..size).map(|column| u8::from(column == n)));
    }
    for pivot in 0..size {
        if let Some(other) = (pivot..size).find(|other| rows[*other][pivot] != 0) {
            rows.swap(pivot, other);
        }
        let by = inverse(rows[pivot][pivot]);
        rows[pivot].iter_mut().for_each(|c| *c = mul(*c, by));
        let row = rows[pivot].clone();
        for (_, other) in rows.iter_mut().enumerate().filter(|(n, _)| *n != pivot) {
            let by = other[pivot];
            other.iter_mut().zip(&row).for_each(|(c, of_pivot)| *c ^= mul(by, *of_pivot));
        }
    }
    rows.into_iter().map(|row| row[size..].to_vec()).collect()
}
