// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls that cannot come back to this library.
//!
//! Every libc function that the program calls by name may be one of ours, also when this library itself, the
//! standard library or the emulated board calls it. Here the instruction is written out, so nothing is in between.

use std::ffi::{CStr, c_int, c_long, c_void};
use std::mem::MaybeUninit;

use ork_drm::Errno;

/// Arguments of a system call.
pub(crate) type Arguments = [usize; 6];

/// Issues a system call; the kernel's answer, with errors as negative numbers.
///
/// # Safety
/// The arguments must be valid for the call.
pub(crate) unsafe fn syscall(number: c_long, arguments: Arguments) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the register use of the x86-64 Linux ABI: rcx and r11 are overwritten, the rest is kept.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the register use of the arm64 Linux ABI: only x0 changes.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    result
}

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: libc gives the address of the thread's own variable.
    unsafe { *libc::__errno_location() = errno.0 };
}

/// The calling thread's `errno`.
pub(crate) fn errno() -> Errno {
    // SAFETY: libc gives the address of the thread's own variable.
    Errno(unsafe { *libc::__errno_location() })
}

/// A kernel answer as a result.
pub(crate) fn result(answer: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&answer) { Err(Errno(-answer as i32)) } else { Ok(answer as usize) }
}

/// A kernel answer as libc functions give it: -1 and `errno`.
pub(crate) fn answer(answer: isize) -> isize {
    match result(answer) {
        Ok(_) => answer,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// `openat`; the raw answer.
pub(crate) fn openat(folder: c_int, path: &CStr, flags: c_int, mode: u32) -> isize {
    // SAFETY: a terminated string; openat writes nothing.
    unsafe {
        syscall(
            libc::SYS_openat,
            [folder as usize, path.as_ptr() as usize, flags as usize, mode as usize, 0, 0],
        )
    }
}

/// `close`; the raw answer.
pub(crate) fn close(fd: c_int) -> isize {
    // SAFETY: closing an fd touches no memory; who owns it is the caller's matter.
    unsafe { syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) }
}

/// An fd that this library owns.
#[derive(Debug)]
pub(crate) struct OwnFd(pub(crate) c_int);

impl Drop for OwnFd {
    fn drop(&mut self) {
        close(self.0);
    }
}

/// An empty memory file.
pub(crate) fn memfd(name: &CStr, cloexec: bool) -> Result<c_int, Errno> {
    let flags = if cloexec { libc::MFD_CLOEXEC } else { 0 };
    // SAFETY: a terminated string; memfd_create writes nothing.
    result(unsafe { syscall(libc::SYS_memfd_create, [name.as_ptr() as usize, flags as usize, 0, 0, 0, 0]) })
        .map(|fd| fd as c_int)
}

/// `fstat`.
pub(crate) fn fstat(fd: c_int) -> Result<libc::stat, Errno> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel's struct and libc's are the same on 64-bit Linux, and there is room for one.
    result(unsafe { syscall(libc::SYS_fstat, [fd as usize, stat.as_mut_ptr() as usize, 0, 0, 0, 0]) })?;
    // SAFETY: filled by the kernel.
    Ok(unsafe { stat.assume_init() })
}

/// `munmap`; the raw answer.
///
/// # Safety
/// Nobody may use the range any more.
pub(crate) unsafe fn munmap(start: *mut c_void, len: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { syscall(libc::SYS_munmap, [start as usize, len, 0, 0, 0, 0]) }
}

/// Process id, from the kernel.
pub(crate) fn process() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_getpid, [0; 6]) as i32 }
}

/// Thread id, from the kernel.
pub(crate) fn thread() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_gettid, [0; 6]) as i32 }
}

/// While this lives, the calling thread takes no signals.
pub(crate) struct Masked(u64);

impl Masked {
    pub(crate) fn all() -> Self {
        let mut old = 0;
        Self::change(libc::SIG_BLOCK, &u64::MAX, &mut old);
        Self(old)
    }

    fn change(how: c_int, new: &u64, old: &mut u64) {
        let set_bytes = size_of::<u64>();
        let arguments = [
            how as usize,
            std::ptr::from_ref(new) as usize,
            std::ptr::from_mut(old) as usize,
            set_bytes,
            0,
            0,
        ];
        // SAFETY: the kernel's signal set has 64 bits; one is read, one is written.
        unsafe { syscall(libc::SYS_rt_sigprocmask, arguments) };
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        Self::change(libc::SIG_SETMASK, &self.0, &mut 0);
    }
}

/// Copies from an address of this process that may be bad.
pub(crate) fn copy_in(address: usize, out: &mut [u8]) -> Result<(), Errno> {
    transfer(libc::SYS_process_vm_readv, out.as_mut_ptr() as usize, address, out.len())
}

/// Copies to an address of this process that may be bad.
pub(crate) fn copy_out(bytes: &[u8], address: usize) -> Result<(), Errno> {
    transfer(libc::SYS_process_vm_writev, bytes.as_ptr() as usize, address, bytes.len())
}

/// `process_vm_readv` and `process_vm_writev` on ourselves: the kernel checks the address.
fn transfer(call: c_long, own: usize, address: usize, len: usize) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    if address == 0 {
        return Err(Errno::EFAULT);
    }
    let local = libc::iovec { iov_base: own as *mut c_void, iov_len: len };
    let remote = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address), iov_len: len };
    let arguments = [process() as usize, &raw const local as usize, 1, &raw const remote as usize, 1, 0];
    // SAFETY: `own` has `len` bytes that the caller borrows as the direction needs; the other side is checked by
    // the kernel.
    match result(unsafe { syscall(call, arguments) }) {
        Ok(done) if done == len => Ok(()),
        Ok(_) => Err(Errno::EFAULT),
        // A sandbox forbids the call: trust the address, as any library does.
        Err(Errno::EPERM | Errno::ENOSYS) => {
            let other = std::ptr::with_exposed_provenance_mut::<u8>(address);
            let own = std::ptr::with_exposed_provenance_mut::<u8>(own);
            let (from, to) = if call == libc::SYS_process_vm_readv { (other, own) } else { (own, other) };
            // SAFETY: `own` as above; the program vouches for its own argument.
            unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
            Ok(())
        }
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_addresses_are_efault() {
        let mut bytes = [0; 4];
        let source = [1_u8, 2, 3, 4];
        assert_eq!(copy_in(source.as_ptr() as usize, &mut bytes), Ok(()));
        assert_eq!(bytes, source);
        assert_eq!(copy_in(0, &mut bytes), Err(Errno::EFAULT));
        assert_eq!(copy_in(8, &mut bytes), Err(Errno::EFAULT));
        assert_eq!(copy_out(&bytes, 8), Err(Errno::EFAULT));
        assert_eq!(copy_out(&[], 8), Ok(()));
    }

    #[test]
    fn answers_become_errno() {
        assert_eq!(answer(-22), -1);
        assert_eq!(errno(), Errno::EINVAL);
        assert_eq!(answer(5), 5);
        assert_eq!(result(-4096), Ok((-4096_isize) as usize), "an address, not an error");
    }
}
