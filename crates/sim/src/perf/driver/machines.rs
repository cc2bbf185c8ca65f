//! The machines that a run can drive: the papers', and the product's own.

mod papers;
mod products;
mod workload;

pub(super) use papers::Papers;
pub(super) use products::Products;
