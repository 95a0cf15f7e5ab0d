// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the NPU kernel drivers have in common.
//!
//! - [`Transport`] is the one seam to a kernel: ioctl and mmap. [`KernelFd`] is a real device node; the emulated
//!   kernel of `ork-emu` is the other implementation.
//! - [`nodes`] and [`probe`] find DRM nodes and ask which driver answers, by name, never by path.
//! - [`uapi`] and [`version`] are the DRM core calls that are used; buffers are shared by [`export_fd`],
//!   [`import_fd`], [`flink`] and [`open_name`]; [`dma_buf`] has the numbers of dma-heap, dma-buf and sync_file.
//! - [`Files`] is the seam for what a kernel makes besides device nodes: dma-bufs and fences.
//!
//! All system calls go through libc symbols (`open`, `ioctl`, `mmap`, `munmap`, `close`), so that a preloaded
//! library can stand in for the device; a test pins that.
//!
//! Not here: what any ioctl of a driver means (`ork-rknpu`), and policy (`ork-device`).

#[cfg(not(all(target_pointer_width = "64", target_endian = "little", target_os = "linux")))]
compile_error!("the kernel interfaces are described for 64-bit little-endian Linux only");

mod discovery;
pub mod dma_buf;
mod errno;
mod files;
mod kernel_fd;
mod sharing;
mod transport;
pub mod uapi;
mod version;

pub use discovery::{Access, Node, NodeError, NodeKind, OpenNode, RealNodes, nodes, probe};
pub use errno::Errno;
pub use files::{Files, HostFiles, SYSTEM_HEAP, monotonic_ns};
pub use kernel_fd::KernelFd;
pub use sharing::{close_handle, export_fd, flink, import_fd, open_name};
pub use transport::{Mapping, Transport};
pub use version::{Version, version};
