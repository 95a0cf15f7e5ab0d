// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reasons for leaving work to the CPU. Declining is a value, not an error: the host runs the operation itself.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Why an operation was not claimed, with the facts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Decline {
    /// Not a matrix multiplication.
    #[error("operation {op} is not offered")]
    Operation {
        /// ggml's name of the operation.
        op: String,
    },
    /// The route keeps everything on the CPU.
    #[error("the route is cpu")]
    RouteIsCpu,
    /// Too few rows to be worth the trip.
    #[error("m = {m} rows, the route takes {min_rows} or more")]
    BelowMinRows {
        /// Rows that each matrix meets.
        m: u64,
        /// The threshold of the route.
        min_rows: u32,
    },
    /// The CPU is modelled to be faster.
    #[error("m = {m} rows, {npu_us} us modelled on the accelerator, {cpu_us} us on the CPU")]
    CpuFaster {
        /// Rows that each matrix meets.
        m: u64,
        /// Modelled time with the accelerator, in microseconds.
        npu_us: u64,
        /// Modelled time on the CPU, in microseconds.
        cpu_us: u64,
    },
    /// The left operand is a computed matrix (KV cache, recurrent state), not a weight.
    #[error("the left operand is computed, not a weight")]
    ComputedOperand,
    /// The weight lives in a buffer of another backend.
    #[error("the weight is in buffer type {buffer_type}")]
    ForeignBuffer {
        /// Name of that buffer type.
        buffer_type: String,
    },
    /// The weight is in our buffer but was never taken by the accelerator (no room, or not written as a weight).
    #[error("the weight is not on the accelerator")]
    NotLoaded,
    /// The weight's rows are not packed one after the other.
    #[error("the weight's rows do not lie in one piece")]
    WeightLayout,
    /// ggml has no decoder for the weight's type.
    #[error("weight type {type_name} cannot be dequantised")]
    WeightType {
        /// ggml's name of the type.
        type_name: String,
    },
    /// The activation is neither f32 nor another type of single numbers.
    #[error("activation type {type_name} is not a type of single numbers")]
    ActivationType {
        /// ggml's name of the type.
        type_name: String,
    },
    /// The result is not contiguous f32.
    #[error("the result is not contiguous f32")]
    ResultLayout,
    /// The operation carries a hint that asks for another algorithm.
    #[error("the operation carries hint {hint}")]
    Hint {
        /// ggml's code of the hint.
        hint: i32,
    },
    /// The host forbids eight bits for the activation.
    #[error("the activation must keep more than eight bits")]
    Precision,
    /// The matrix would be packed for this product alone, which gives next to nothing.
    #[error("{results} results are fewer than the {min} for which a matrix is packed anew")]
    FewResults {
        /// Results of the product.
        results: u64,
        /// Fewest that are taken.
        min: u64,
    },
    /// The weight's name matches an exclusion of the options.
    #[error("{name} is excluded by pattern {pattern}")]
    Excluded {
        /// Name of the weight.
        name: String,
        /// The pattern that matched.
        pattern: String,
    },
    /// A limit of the accelerator.
    #[error("{law}: {detail}")]
    Limit {
        /// Name of the law that says no.
        law: String,
        /// The numbers.
        detail: String,
    },
    /// The accelerator cannot be opened; its error was logged once.
    #[error("{detail}")]
    Unavailable {
        /// The accelerator's error, with its causes.
        detail: String,
    },
    /// Operands are missing; the graph is not one ggml builds.
    #[error("malformed operation")]
    Malformed,
}

impl Decline {
    /// The reason without the facts, to count by.
    pub fn reason(&self) -> DeclineReason {
        match self {
            Self::Operation { .. } => DeclineReason::Operation,
            Self::RouteIsCpu => DeclineReason::RouteIsCpu,
            Self::BelowMinRows { .. } => DeclineReason::BelowMinRows,
            Self::CpuFaster { .. } => DeclineReason::CpuFaster,
            Self::ComputedOperand => DeclineReason::ComputedOperand,
            Self::ForeignBuffer { .. } => DeclineReason::ForeignBuffer,
            Self::NotLoaded => DeclineReason::NotLoaded,
            Self::WeightLayout => DeclineReason::WeightLayout,
            Self::WeightType { .. } => DeclineReason::WeightType,
            Self::ActivationType { .. } => DeclineReason::ActivationType,
            Self::ResultLayout => DeclineReason::ResultLayout,
            Self::Hint { .. } => DeclineReason::Hint,
            Self::Precision => DeclineReason::Precision,
            Self::FewResults { .. } => DeclineReason::FewResults,
            Self::Excluded { .. } => DeclineReason::Excluded,
            Self::Limit { .. } => DeclineReason::Limit,
            Self::Unavailable { .. } => DeclineReason::Unavailable,
            Self::Malformed => DeclineReason::Malformed,
        }
    }
}

/// [`Decline`] without its facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant is the one of the same name in `Decline`")]
pub enum DeclineReason {
    Operation,
    RouteIsCpu,
    BelowMinRows,
    CpuFaster,
    ComputedOperand,
    ForeignBuffer,
    NotLoaded,
    WeightLayout,
    WeightType,
    ActivationType,
    ResultLayout,
    Hint,
    Precision,
    FewResults,
    Excluded,
    Limit,
    Unavailable,
    Malformed,
}

impl DeclineReason {
    /// The name used in tables and in serialised form.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Operation => "operation",
            Self::RouteIsCpu => "route_is_cpu",
            Self::BelowMinRows => "below_min_rows",
            Self::CpuFaster => "cpu_faster",
            Self::ComputedOperand => "computed_operand",
            Self::ForeignBuffer => "foreign_buffer",
            Self::NotLoaded => "not_loaded",
            Self::WeightLayout => "weight_layout",
            Self::WeightType => "weight_type",
            Self::ActivationType => "activation_type",
            Self::ResultLayout => "result_layout",
            Self::Hint => "hint",
            Self::Precision => "precision",
            Self::FewResults => "few_results",
            Self::Excluded => "excluded",
            Self::Limit => "limit",
            Self::Unavailable => "unavailable",
            Self::Malformed => "malformed",
        }
    }
}

impl fmt::Display for DeclineReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
