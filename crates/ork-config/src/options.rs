// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_device::DeviceOptions;
use ork_driver::DriverOptions;
use ork_engine_options::{ContextOptions, GenerateOptions, LoadOptions};
use ork_ggml::{
    Attention, BackendOptions, ExpertOptions, ForeignWeights, MinRows, PackChoice, Route, Swiglu,
};
use ork_recipe::{CalibrateOptions, PackOptions};
use serde::{Deserialize, Serialize};

/// All settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Which NPU, and how it is used.
    pub device: DeviceOptions,
    /// What the NPU takes from the CPU.
    pub offload: Offload,
    /// How matrix products are planned.
    pub driver: DriverOptions,
    /// How a model is loaded.
    pub load: LoadOptions,
    /// The context that tokens are evaluated in.
    pub context: ContextOptions,
    /// How text is generated.
    pub generate: GenerateOptions,
    /// How statistics are gathered.
    pub calibrate: CalibrateOptions,
    /// How packs are written.
    pub pack: PackOptions,
    /// The plug-in for llama.cpp's own programs.
    pub plugin: Plugin,
}

/// The plug-in for llama.cpp's own programs; it has no command line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plugin {
    /// What is logged to standard error.
    pub log: PluginLog,
    /// What is printed to standard error when the program ends.
    pub report: PluginReport,
    /// Whether there is a second device that takes whole graphs, for RPC servers.
    pub node: bool,
}

/// The least serious events that the plug-in logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the usual levels")]
pub enum PluginLog {
    Off,
    Error,
    #[default]
    Warn,
    Info,
    Debug,
    Trace,
}

/// What the plug-in prints when the program ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PluginReport {
    /// Nothing.
    #[default]
    Off,
    /// Weights held, products computed, products declined by reason.
    Summary,
    /// The same, and one line for each weight.
    Table,
}

/// What the NPU takes from the CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Offload {
    /// Who multiplies.
    pub route: RouteKind,
    /// Which products `route = "auto"` gives to the NPU: `by-cost`, or a number of rows from which it does.
    pub min_rows: MinRows,
    /// Weights that stay on the CPU, by name; `*` stands for any run of characters.
    pub exclude: Vec<String>,
    /// Where the NPU's weights come from: a pack, or the model's own bytes.
    pub pack: PackChoice,
    /// Matrices in plain memory of the CPU, which were not packed when the model was loaded.
    pub foreign_weights: ForeignWeights,
    /// Experts of mixtures.
    pub experts: ExpertOptions,
    /// SwiGLU of a feed-forward.
    pub swiglu: Swiglu,
    /// Products of two computed matrices.
    pub attention: Attention,
}

impl Default for Offload {
    fn default() -> Self {
        Self {
            route: RouteKind::Auto,
            min_rows: MinRows::ByCost,
            exclude: Vec::new(),
            pack: PackChoice::Auto,
            foreign_weights: ForeignWeights::default(),
            experts: ExpertOptions::default(),
            swiglu: Swiglu::default(),
            attention: Attention::default(),
        }
    }
}

/// Who multiplies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteKind {
    /// Each product where it is modelled to be faster.
    #[default]
    Auto,
    /// Everything on the NPU.
    Npu,
    /// Nothing on the NPU.
    Cpu,
}

impl Offload {
    /// The same, as the backend wants it.
    #[must_use]
    pub fn backend_options(&self) -> BackendOptions {
        let route = match self.route {
            RouteKind::Auto => Route::Auto { min_rows: self.min_rows },
            RouteKind::Npu => Route::Npu,
            RouteKind::Cpu => Route::Cpu,
        };
        BackendOptions {
            route,
            exclude: self.exclude.clone(),
            foreign_weights: self.foreign_weights,
            experts: self.experts.clone(),
            swiglu: self.swiglu,
            attention: self.attention,
        }
    }
}

/// One setting: its key in the file, and the flag that also sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionDef {
    /// Dotted key.
    pub key: &'static str,
    /// Long flag, without dashes, if it has one.
    pub flag: Option<&'static str>,
    /// Short flag.
    pub short: Option<char>,
    /// What a value looks like: a word for people, or the allowed words separated by `|`.
    pub value: &'static str,
    /// What it does.
    pub help: &'static str,
}

const fn named(
    key: &'static str,
    flag: &'static str,
    short: Option<char>,
    value: &'static str,
    help: &'static str,
) -> OptionDef {
    OptionDef { key, flag: Some(flag), short, value, help }
}

const fn keyed(key: &'static str, value: &'static str, help: &'static str) -> OptionDef {
    OptionDef { key, flag: None, short: None, value, help }
}

/// Every setting. A test holds this list against [`Config`].
#[rustfmt::skip]
pub const OPTIONS: &[OptionDef] = &[
    named("generate.max_tokens", "tokens", Some('n'), "N", "Most tokens to generate"),
    named("generate.sampling.temperature", "temperature", None, "T", "Randomness; 0 always takes the likeliest token"),
    named("generate.sampling.seed", "seed", None, "N", "Seed of the draw; equal seeds give equal text"),
    named("generate.sampling.top_k", "top-k", None, "N", "Draw from the N likeliest tokens; 0 for all"),
    named("generate.sampling.top_p", "top-p", None, "P", "Draw from the likeliest tokens that add up to P"),
    named("generate.sampling.min_p", "min-p", None, "P", "Drop tokens less likely than P times the likeliest"),
    named("context.context_tokens", "context", Some('c'), "N", "Tokens that the context holds"),
    named("context.batch_tokens", "batch", Some('b'), "N", "Tokens evaluated at once"),
    named("context.threads", "threads", Some('t'), "N", "CPU threads for what stays on the CPU"),
    named("context.cache_type_k", "cache-type-k", None, "f32|f16|bf16|q8_0|q5_1|q5_0|q4_1|q4_0|iq4_nl", "Type of the keys in the cache"),
    named("context.cache_type_v", "cache-type-v", None, "f32|f16|bf16|q8_0|q5_1|q5_0|q4_1|q4_0|iq4_nl", "Type of the values in the cache"),
    named("device.kind", "device", None, "auto|sim|rknpu|rocket|cpu", "The NPU: auto takes a board's, else the simulated one; cpu means --route cpu"),
    named("device.node", "device-node", None, "PATH", "Device node to use instead of searching"),
    named("device.cores", "cores", None, "N", "NPU cores to use, 1 to 3"),
    named("device.timeout_ms", "timeout-ms", None, "MS", "Longest time that a job on the NPU may take"),
    named("offload.route", "route", None, "auto|npu|cpu", "Who multiplies: auto gives each product to the one that is modelled to be faster"),
    named("offload.min_rows", "min-rows", None, "by-cost|N", "Which products route auto gives to the NPU: by modelled cost, or from N rows on"),
    named("offload.pack", "pack", None, "auto|never|require|build|PATH", "Weights that were packed for the NPU: auto takes MODEL.orkpack beside MODEL.gguf if there is one, build makes it once"),
    keyed("offload.exclude", "[\"NAME\", ...]", "Weights that stay on the CPU; * stands for any run of characters"),
    keyed("offload.foreign_weights", "decline|pack_per_call", "Matrices in plain CPU memory: leave them, or pack them for each product (slow; ggml's backend test needs it)"),
    keyed("offload.experts.cache", "all|BYTES", "Experts of a mixture on the NPU: all, or the most used that so many bytes hold; the others are computed on the CPU in four bits"),
    keyed("offload.experts.skew", "PATH", "File of ork moe-skew: which experts are used most"),
    keyed("offload.experts.codes", "nf4|int4", "Four-bit codes of experts where there is a cache and no pack"),
    keyed("offload.swiglu", "off|overlap", "SwiGLU between products on the NPU: by llama.cpp afterwards, or by ork's threads beside the second product"),
    keyed("offload.attention", "off|by-cost|on", "Products of queries with keys, and of scores with values: on the NPU never, where it is modelled to pay, or whenever it can; int8"),
    keyed("plugin.log", "off|error|warn|info|debug|trace", "What the plug-in for llama.cpp's own programs logs to standard error"),
    keyed("plugin.report", "off|summary|table", "What the plug-in prints to standard error when the program ends"),
    keyed("plugin.node", "true|false", "Whether the plug-in adds the device ORK_NODE, which takes whole graphs, for llama.cpp's RPC server"),
    keyed("load.mmap", "true|false", "Map the model file instead of reading it"),
    keyed("device.dev_root", "PATH", "Where device nodes are searched"),
    keyed("device.exclusive", "true|false", "Lock a real device against a second program"),
    keyed("device.lock_wait_ms", "MS", "How long to wait for another program that has the NPU"),
    keyed("device.lock_dir", "PATH", "Folder of the lock file that all users of an NPU share; a boot should empty it"),
    keyed("device.submit", "auto|blocking|polled|fenced", "How jobs on the NPU are submitted and waited for"),
    keyed("device.recovery", "auto|forbid|allow", "Whether a job that fails is tried again; auto allows it on a real NPU"),
    keyed("device.domains", "N", "Address spaces to put weights in; 0 for all that the driver has"),
    keyed("device.domain_bytes_max", "BYTES", "Most bytes of weights in one address space of 4 GiB"),
    keyed("device.sram", "off|scratch", "Whether activations and results may lie in on-chip memory"),
    keyed("device.emulated_driver", "rknpu|rocket", "Driver that the emulated board has"),
    keyed("device.emulated.time", "virtual|real", "Whether time-outs and resets of the emulated kernel take host time"),
    keyed("device.emulated.driver_version", "[0, 9, 8]", "Driver version that the emulated kernel has"),
    keyed("device.emulated.domain_wait_ms", "MS", "How long the emulated kernel waits for a busy IOMMU domain"),
    keyed("device.emulated.soc", "rk3588|rk3576|rk3568", "Chip that the emulated kernel reports"),
    keyed("device.emulated.coherency", "strict|shared", "Model the CPU's caches of the emulated board, or share one memory"),
    keyed("device.emulated.iommu", "true|false", "Whether the emulated NPU sits behind an IOMMU"),
    keyed("device.emulated.fences", "true|false", "Whether the emulated kernel was built with fences"),
    keyed("device.emulated.memory_bytes", "BYTES", "Memory that the buffers of the emulated board can take together"),
    keyed("device.emulated.sram_bytes", "BYTES", "On-chip SRAM that the emulated device tree grants the NPU"),
    keyed("device.emulated.nonblock_wait_ms", "MS", "With shared memory: how long a non-blocking submit lets its job end before it returns"),
    keyed("device.emulated.reap_compares_microseconds", "true|false", "A flaw of 0.9.8: non-blocking submits throw running jobs away far too early"),
    keyed("device.emulated.bypass_soft_reset", "true|false", "Module parameter of the emulated driver: soft resets do nothing"),
    keyed("device.emulated.private_actions", "true|false", "Know action 0x100 of a private kernel"),
    keyed("device.emulated.rocket.timeout_ms", "MS", "Time limit of a job of the emulated mainline driver"),
    keyed("device.emulated.rocket.pooling_completes", "true|false", "Let programs that end in the pooling unit complete, as a public fork of the mainline driver does"),
    keyed("device.emulated.faults.seed", "N", "Decides which events a fault's share means"),
    keyed("device.emulated.faults.hang", "never|always|nth:N|one-in:N", "Fault: a core takes a job and never ends it"),
    keyed("device.emulated.faults.wild_read", "never|always|nth:N|one-in:N", "Fault: one read of a job returns other bytes of its domain"),
    keyed("device.emulated.faults.wild_write", "never|always|nth:N|one-in:N", "Fault: one write of a job lands elsewhere in its domain"),
    keyed("device.emulated.faults.overrun", "never|always|nth:N|one-in:N", "Fault: one write of a job runs past its mapping"),
    keyed("device.emulated.faults.dropped", "never|always|nth:N|one-in:N", "Fault: a job is accepted and never dispatched"),
    keyed("device.emulated.faults.late_write_back", "never|always|nth:N|one-in:N", "Fault: the last line of each output arrives after the interrupt"),
    keyed("device.emulated.faults.late_write_back_ms", "MS", "How much later the last lines arrive"),
    keyed("device.emulated.faults.lost_interrupt", "never|always|nth:N|one-in:N", "Fault: a job completes, and its interrupt is lost"),
    keyed("device.emulated.faults.stale_line", "never|always|nth:N|one-in:N", "Fault: cache maintenance leaves the first line of its range"),
    keyed("device.emulated.faults.interrupted", "never|always|nth:N|one-in:N", "Fault: a call is interrupted by a signal"),
    keyed("device.emulated.faults.out_of_memory", "never|always|nth:N|one-in:N", "Fault: no memory for an allocation"),
    keyed("device.emulated.faults.leaked_domain", "never|always|nth:N|one-in:N", "Fault: a job's use of its IOMMU domain is never given back"),
    keyed("device.emulated.faults.dead_core", "N", "Fault: the core on which nothing ever completes"),
    keyed("device.emulated.faults.window_bytes", "BYTES", "Smaller address windows: bytes per domain or file"),
    keyed("device.emulated.sim.reference_kernels", "true|false", "Simulate with plain loops instead of the fast kernels"),
    keyed("device.emulated.sim.threads", "N", "Host threads of the simulated MAC arrays; 0 for all"),
    keyed("device.emulated.sim.float_sums", "exact|fast", "Add up fp16, bf16 and tf32 products in f64, rounded once, or in f32"),
    keyed("device.emulated.sim.strict", "true|false", "End a simulated job at the first finding, even where silicon would complete"),
    keyed("device.emulated.sim.silicon.int4_saturation", "at-write-back|every-pass", "Open point: where int4 sums saturate"),
    keyed("device.emulated.sim.silicon.wide_converter", "floor|half-even", "Open point: rounding of 32-bit outputs"),
    keyed("device.emulated.sim.silicon.stage_shift", "half-even|floor|half-away", "Open point: rounding of the stage shifts"),
    keyed("device.emulated.sim.silicon.lut_between", "floor|half-up|nearest-entry", "Open point: values between table entries"),
    keyed("device.emulated.sim.silicon.lut_below", "not-negative|plain", "Open point: values below the first table entry"),
    keyed("device.emulated.sim.silicon.affine_zero", "exponent-wraps|zero", "Open point: zero in the affine converter"),
    keyed("device.emulated.sim.silicon.sub_order", "main-first|reversed", "Open point: operand order of subtraction"),
    keyed("device.emulated.sim.silicon.reset_stages", "pass-through|zero", "Open point: output stages after reset"),
    keyed("device.emulated.sim.silicon.fp16_overflow", "infinity|clamp", "Open point: fp16 overflow"),
    keyed("device.emulated.sim.silicon.pointer_scope", "dpu-covers-all|own-block", "Open point: blocks that the DPU's S_POINTER turns"),
    keyed("device.emulated.sim.silicon.feature_grains", "neutral|fp16-needs-eighty", "Open point: whether FEATURE_GRAINS changes results"),
    keyed("device.emulated.sim.silicon.int16_output", "laws|one-tile", "Open point: what int16 sums leave in memory"),
    keyed("device.emulated.sim.silicon.long_rows", "hang|fp16-frays", "Open point: element-wise passes of more than 8176 rows"),
    keyed("device.emulated.sim.silicon.lut_index", "rounded|real", "Open point: the index of a table in float mode"),
    keyed("device.emulated.sim.silicon.lut_select", "index-sign|input-sign", "Open point: which table an index reads"),
    keyed("device.emulated.sim.silicon.lut_race", "new-table|old-table", "Open point: a table that an alternating chain loads and uses"),
    keyed("device.emulated.sim.silicon.bn_shift", "floor|half-even|half-away", "Open point: rounding of the shift of BN"),
    keyed("device.emulated.sim.silicon.stage_width", "wide|saturate32", "Open point: width of integers between the output stages"),
    keyed("device.emulated.sim.silicon.precision_mixing", "harmless|int4-needs-reset", "Open point: int4 beside other precisions without a reset"),
    keyed("driver.completion", "auto|seed", "How the end of a product on the NPU is known: by the kernel's word where that is enough, or by a seed"),
    keyed("driver.residency.stream", "off|auto|all", "Which weights stay in RAM and are brought to the NPU when they are used; auto: those that find no room"),
    keyed("driver.residency.backing", "copy|map", "Copy streamed weights into slots, or map them from dma-bufs"),
    keyed("driver.residency.tiles", "in-place|copy", "Tiles of a pack: used where they lie if the kernel can, or copied into device memory as a board does"),
    keyed("driver.residency.window_bytes", "BYTES", "Device memory for streamed weights"),
    keyed("driver.residency.prefetch", "true|false", "Bring in the next streamed weight while one is used, and the tiles of a pack behind its loading"),
    keyed("driver.verify", "off|product", "Check each row of int8 products on the CPU, for a small part of their cost"),
    keyed("driver.plan.cores", "N", "Cores that plans use; 0 for all in use"),
    keyed("driver.plan.scratch_bytes_max", "BYTES", "Largest feature or output buffer; larger products run in passes"),
    keyed("calibrate.tokens", "N", "Tokens of the text that calibration reads"),
    keyed("calibrate.window_tokens", "N", "Tokens that follow each other before calibration empties the context"),
    keyed("calibrate.memory_bytes_max", "BYTES", "Most memory for statistics; calibration that could need more is refused"),
    keyed("calibrate.save_seconds", "S", "Seconds between saves of a calibration"),
    keyed("pack.part_bytes_max", "BYTES", "Largest file of a pack; a larger pack becomes several files"),
    keyed("driver.plan.rules", "[\"NAME\", ...]", "Tiling rules to use instead of the default ones"),
];

/// The option with this key.
#[must_use]
pub fn option(key: &str) -> Option<&'static OptionDef> {
    OPTIONS.iter().find(|option| option.key == key)
}

impl OptionDef {
    /// The environment variable that sets it.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("ORK_{}", self.key.replace('.', "__").to_uppercase())
    }
}
