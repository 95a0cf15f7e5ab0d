// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the ggml of the process that loaded this library.
//!
//! Its functions cannot be imported by the linker: programs like Node or Python load ggml in a scope of its own, and
//! its libraries go by different names. So they are looked up when the library starts: first among the symbols that
//! everybody sees, then in each loaded object.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use ork_ggml::{GraphHost, Host, abi};

/// Why there is no ggml to work with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HostError {
    #[error(
        "this program does not show its ggml: it is linked statically. Use a llama.cpp built with GGML_BACKEND_DL, \
         or the ork program"
    )]
    NotFound,
    #[error(
        "this program's ggml{version} has a backend interface older than version {}; a llama.cpp of build 11434 or \
         near it has the right one",
        abi::API_VERSION
    )]
    TooOld { version: String },
    #[error("this program's ggml{version} has no function {name}")]
    Missing { version: String, name: &'static str },
}

/// A loaded object in which symbols are looked up.
#[derive(Debug, Clone, Copy)]
struct Scope(*mut c_void);

impl Scope {
    fn symbol(self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the handle is RTLD_DEFAULT or from a `dlopen` that is never closed; the name ends with NUL.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }
}

/// A function that every ggml with loadable backends has.
const LANDMARK: &CStr = c"ggml_backend_buffer_init";
/// New in interface version 3. The number itself cannot be asked for.
const SINCE_VERSION_3: &CStr = c"ggml_backend_buft_alloc_buffer_n";

/// The functions of this process's ggml.
pub(crate) fn find() -> Result<Host, HostError> {
    let default = Scope(libc::RTLD_DEFAULT);
    let scope = if default.symbol(LANDMARK).is_some() {
        default
    } else {
        loaded_objects()
            .into_iter()
            .find(|scope| scope.symbol(LANDMARK).is_some())
            .ok_or(HostError::NotFound)?
    };
    let version = || {
        let Some(function) = scope.symbol(c"ggml_version") else { return String::new() };
        // SAFETY: ggml's function of that name takes nothing and returns a static string.
        let text = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const c_char>(function)()
        };
        if text.is_null() {
            return String::new();
        }
        // SAFETY: not null, and NUL-terminated.
        format!(" {}", unsafe { CStr::from_ptr(text) }.to_string_lossy())
    };
    if scope.symbol(SINCE_VERSION_3).is_none() {
        return Err(HostError::TooOld { version: version() });
    }
    let named = |name: &'static CStr| {
        scope
            .symbol(name)
            .ok_or_else(|| HostError::Missing { version: version(), name: name.to_str().unwrap_or_default() })
    };
    // SAFETY: in each line the name's function has the type of the field: `abi` mirrors the interface that was probed
    // above.
    unsafe {
        use std::mem::transmute;
        Ok(Host {
            ggml_backend_cpu_buffer_type: transmute::<
                *mut c_void,
                unsafe extern "C" fn() -> *mut abi::BufferType,
            >(named(c"ggml_backend_cpu_buffer_type")?),
            ggml_backend_cpu_buffer_from_ptr: transmute::<
                *mut c_void,
                unsafe extern "C" fn(*mut c_void, usize) -> *mut abi::Buffer,
            >(named(c"ggml_backend_cpu_buffer_from_ptr")?),
            ggml_backend_buffer_init: transmute::<
                *mut c_void,
                unsafe extern "C" fn(
                    *mut abi::BufferType,
                    abi::BufferI,
                    *mut c_void,
                    usize,
                ) -> *mut abi::Buffer,
            >(named(LANDMARK)?),
            ggml_backend_buft_is_host: transmute::<
                *mut c_void,
                unsafe extern "C" fn(*mut abi::BufferType) -> bool,
            >(named(c"ggml_backend_buft_is_host")?),
            ggml_get_type_traits: transmute::<
                *mut c_void,
                unsafe extern "C" fn(c_int) -> *const abi::TypeTraits,
            >(named(c"ggml_get_type_traits")?),
            ggml_nbytes: transmute::<*mut c_void, unsafe extern "C" fn(*const abi::Tensor) -> usize>(named(
                c"ggml_nbytes",
            )?),
            ggml_is_contiguous: transmute::<*mut c_void, unsafe extern "C" fn(*const abi::Tensor) -> bool>(
                named(c"ggml_is_contiguous")?,
            ),
            ggml_graph_n_nodes: transmute::<*mut c_void, unsafe extern "C" fn(*mut abi::Graph) -> c_int>(
                named(c"ggml_graph_n_nodes")?,
            ),
            ggml_graph_node: transmute::<
                *mut c_void,
                unsafe extern "C" fn(*mut abi::Graph, c_int) -> *mut abi::Tensor,
            >(named(c"ggml_graph_node")?),
            ggml_op_name: transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> *const c_char>(named(
                c"ggml_op_name",
            )?),
        })
    }
}

/// The functions that schedule graphs, wherever in the process they are: some are in ggml-base, some in its registry.
pub(crate) fn find_graphs() -> Result<GraphHost, HostError> {
    let objects = loaded_objects();
    let named = |name: &'static CStr| {
        let everywhere = std::iter::once(Scope(libc::RTLD_DEFAULT)).chain(objects.iter().copied());
        everywhere.map(|scope| scope.symbol(name)).find_map(|found| found).ok_or_else(|| HostError::Missing {
            version: String::new(),
            name: name.to_str().unwrap_or_default(),
        })
    };
    // SAFETY: in each line the name's function has the type of the field, which the compiler infers from it; all are as
    // old as the interface version that `find` probes.
    unsafe {
        use std::mem::transmute;
        type Device = *mut abi::Device;
        type Reg = *mut abi::Reg;
        type Stream = *mut abi::Stream;
        type Sched = *mut abi::Scheduler;
        type Graph = *mut abi::Graph;
        Ok(GraphHost {
            ggml_backend_dev_by_type: transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> Device>(named(
                c"ggml_backend_dev_by_type",
            )?),
            ggml_backend_dev_init: transmute::<
                *mut c_void,
                unsafe extern "C" fn(Device, *const c_char) -> Stream,
            >(named(c"ggml_backend_dev_init")?),
            ggml_backend_dev_supports_op: transmute::<
                *mut c_void,
                unsafe extern "C" fn(Device, *const abi::Tensor) -> bool,
            >(named(c"ggml_backend_dev_supports_op")?),
            ggml_backend_dev_memory: transmute::<
                *mut c_void,
                unsafe extern "C" fn(Device, *mut usize, *mut usize),
            >(named(c"ggml_backend_dev_memory")?),
            ggml_backend_dev_backend_reg: transmute::<*mut c_void, unsafe extern "C" fn(Device) -> Reg>(
                named(c"ggml_backend_dev_backend_reg")?,
            ),
            ggml_backend_reg_get_proc_address: transmute::<
                *mut c_void,
                unsafe extern "C" fn(Reg, *const c_char) -> *mut c_void,
            >(named(c"ggml_backend_reg_get_proc_address")?),
            ggml_backend_free: transmute::<*mut c_void, unsafe extern "C" fn(Stream)>(named(
                c"ggml_backend_free",
            )?),
            ggml_backend_sched_new: transmute::<
                *mut c_void,
                unsafe extern "C" fn(
                    *mut Stream,
                    *mut *mut abi::BufferType,
                    c_int,
                    usize,
                    bool,
                    bool,
                ) -> Sched,
            >(named(c"ggml_backend_sched_new")?),
            ggml_backend_sched_reset: transmute::<*mut c_void, unsafe extern "C" fn(Sched)>(named(
                c"ggml_backend_sched_reset",
            )?),
            ggml_backend_sched_alloc_graph: transmute::<
                *mut c_void,
                unsafe extern "C" fn(Sched, Graph) -> bool,
            >(named(c"ggml_backend_sched_alloc_graph")?),
            ggml_backend_sched_graph_compute: transmute::<
                *mut c_void,
                unsafe extern "C" fn(Sched, Graph) -> c_int,
            >(named(c"ggml_backend_sched_graph_compute")?),
            ggml_backend_sched_free: transmute::<*mut c_void, unsafe extern "C" fn(Sched)>(named(
                c"ggml_backend_sched_free",
            )?),
        })
    }
}

/// Every object that the process has loaded, in the loader's order. They stay referenced: a host that drops its ggml
/// while this library lives would leave pointers into nothing.
fn loaded_objects() -> Vec<Scope> {
    let mut names: Vec<CString> = Vec::new();
    // SAFETY: the callback gets a pointer to `names`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(collect), (&raw mut names).cast()) };
    names
        .iter()
        .filter_map(|name| {
            // SAFETY: NUL-terminated; with RTLD_NOLOAD nothing is loaded or initialised.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
            (!handle.is_null()).then_some(Scope(handle))
        })
        .collect()
}

unsafe extern "C" fn collect(info: *mut libc::dl_phdr_info, _: usize, names: *mut c_void) -> c_int {
    // SAFETY: `loaded_objects` passes its vector.
    let names = unsafe { &mut *names.cast::<Vec<CString>>() };
    // SAFETY: the loader passes a valid entry; its name is null or NUL-terminated.
    unsafe {
        let name = (*info).dlpi_name;
        // The program itself has no name; its symbols are those that everybody sees.
        if !name.is_null() && *name != 0 {
            names.push(CStr::from_ptr(name).to_owned());
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaded_objects_are_found_by_what_they_export() {
        let objects = loaded_objects();
        assert!(objects.iter().any(|object| object.symbol(c"malloc").is_some()), "libc is loaded");
        assert!(!objects.iter().any(|object| object.symbol(c"no_such_function_at_all").is_some()));
    }

    #[test]
    fn a_program_without_ggml_is_told_so() {
        let error = find().unwrap_err();
        assert_eq!(error, HostError::NotFound);
        assert!(error.to_string().contains("GGML_BACKEND_DL"), "{error}");
    }
}
