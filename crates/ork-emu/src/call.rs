// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_drm::{Errno, uapi as drm};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// One ioctl's argument.
pub(crate) struct Call<'a> {
    pub(crate) request: u32,
    argument: &'a mut [u8],
}

impl<'a> Call<'a> {
    /// Checks that the argument has the size that the request encodes.
    pub(crate) fn new(request: u32, argument: &'a mut [u8]) -> Result<Self, Errno> {
        let argument = argument.get_mut(..drm::argument_size(request)).ok_or(Errno::EFAULT)?;
        Ok(Self { request, argument })
    }

    /// DRM's rule. `definition` is the request as the kernel knows it, of which only the number must be the caller's.
    /// As many bytes as the caller's size field says are copied in, the rest of the kernel's struct is zero; as many
    /// are copied out, also when the handler fails. Each direction only if both requests have it.
    pub(crate) fn with<A>(
        self,
        definition: u32,
        handler: impl FnOnce(&mut A) -> Result<(), Errno>,
    ) -> Result<(), Errno>
    where
        A: FromBytes + IntoBytes + Immutable,
    {
        let mut own = A::new_zeroed();
        let common = self.argument.len().min(drm::argument_size(definition)).min(size_of::<A>());
        let both = self.request & definition;
        if drm::copies_in(both) {
            own.as_mut_bytes()[..common].copy_from_slice(&self.argument[..common]);
        }
        let result = handler(&mut own);
        if drm::copies_out(both) {
            self.argument[..common].copy_from_slice(&own.as_bytes()[..common]);
            if !drm::copies_in(both) {
                // What the kernel does not know comes back as it came.
                self.argument[common..].fill(0);
            }
        }
        result
    }
}
