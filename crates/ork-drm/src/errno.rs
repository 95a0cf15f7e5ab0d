// SPDX-License-Identifier: MIT OR Apache-2.0
use std::{fmt, io};

/// A kernel error number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! names {
    ($($(#[doc = $doc:literal])* $name:ident),* $(,)?) => {
        impl Errno {
            $( $(#[doc = $doc])* pub const $name: Self = Self(libc::$name); )*

            /// The symbolic name, for the numbers that DRM drivers return.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $( Self::$name => Some(stringify!($name)), )*
                    _ => None,
                }
            }
        }
    };
}

names! {
    /// Operation not permitted.
    EPERM,
    /// No such object.
    ENOENT,
    /// Interrupted by a signal.
    EINTR,
    /// Input/output error.
    EIO,
    /// Bad file descriptor.
    EBADF,
    /// Try again.
    EAGAIN,
    /// Out of memory.
    ENOMEM,
    /// Permission denied.
    EACCES,
    /// Bad address; for `rknpu` also: the address window is full.
    EFAULT,
    /// Busy.
    EBUSY,
    /// Device gone.
    ENODEV,
    /// Invalid argument.
    EINVAL,
    /// Too many open files in the system.
    ENFILE,
    /// Too many open files in the process.
    EMFILE,
    /// The file does not know the ioctl.
    ENOTTY,
    /// No space.
    ENOSPC,
    /// No such system call or function.
    ENOSYS,
    /// Not supported.
    EOPNOTSUPP,
    /// Timed out.
    ETIMEDOUT,
}

impl Errno {
    /// The calling thread's `errno`.
    pub(crate) fn last() -> Self {
        Self::from_io(&io::Error::last_os_error())
    }

    /// The number behind an I/O error; `EIO` when it did not come from the system.
    #[must_use]
    pub fn from_io(error: &io::Error) -> Self {
        error.raw_os_error().map_or(Self::EIO, Self)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = io::Error::from_raw_os_error(self.0).to_string();
        // The standard library appends "(os error N)".
        let text = text.split(" (os error").next().unwrap_or_default();
        match self.name() {
            Some(name) => write!(f, "{text} ({name})"),
            None => write!(f, "{text} (errno {})", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

impl std::error::Error for Errno {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_linux() {
        let table = [
            (Errno::ENOENT, 2),
            (Errno::EINTR, 4),
            (Errno::ENOMEM, 12),
            (Errno::EACCES, 13),
            (Errno::EFAULT, 14),
            (Errno::EINVAL, 22),
            (Errno::ENOTTY, 25),
            (Errno::EOPNOTSUPP, 95),
            (Errno::ETIMEDOUT, 110),
        ];
        for (errno, number) in table {
            assert_eq!(errno.0, number, "{errno:?}");
        }
    }

    #[test]
    fn texts_carry_name_or_number() {
        assert_eq!(Errno::EINVAL.to_string(), "Invalid argument (EINVAL)");
        assert!(Errno(4095).to_string().ends_with("(errno 4095)"));
    }
}
