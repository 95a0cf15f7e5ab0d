// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers: sizes, ranges, counters, lifetimes.

use crate::support;
use ork_device::{Device, DeviceError, DeviceOptions, DomainId, EmuOptions, Purpose};
use ork_drm::Errno;
use support::*;

#[test]
fn a_buffer_has_the_length_asked_for_and_starts_zeroed() {
    let (device, board) = device();
    let mut buffer = device.alloc(Purpose::Data, 440).unwrap();
    assert_eq!((buffer.len(), buffer.host().len(), buffer.is_empty()), (440, 440, false));
    assert!(buffer.host().iter().all(|byte| *byte == 0));
    buffer.host_mut()[439] = 1;
    assert_eq!(buffer.host()[439], 1);
    assert_eq!(buffer.iova().0 % 4096, 0);
    assert_eq!(board.live().dram_bytes, 4096);
    assert_eq!(device.counters().bytes_allocated, 4096);
}

#[test]
fn buffers_do_not_overlap() {
    let (device, _) = device();
    let buffers: Vec<_> = (1..40).map(|i| device.alloc(Purpose::Data, i * 1000).unwrap()).collect();
    let mut ranges: Vec<_> =
        buffers.iter().map(|b| (u64::from(b.iova().0), u64::from(b.iova().0) + b.len())).collect();
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0));
}

#[test]
fn impossible_lengths_are_refused() {
    let (device, board) = device();
    for len in [0, (1 << 32) + 1, u64::MAX] {
        assert!(matches!(device.alloc(Purpose::Data, len), Err(DeviceError::Length { len: l }) if l == len));
    }
    assert_eq!(board.live().objects, 0);
}

#[test]
fn ranges_are_checked_and_counted_as_asked() {
    let (device, _) = device();
    let matmul = Matmul::new(&device, DomainId(0), 1).flushed();
    let completed = matmul.run(&device, 0).unwrap();
    let before = device.counters();

    let mut buffer = device.alloc(Purpose::Data, 1000).unwrap();
    buffer.flush(0..1000).unwrap();
    buffer.flush(10..20).unwrap();
    buffer.flush(500..500).unwrap();
    buffer.invalidate(0..64, &completed).unwrap();
    #[expect(clippy::reversed_empty_ranges, reason = "a caller's mistake")]
    let bad = [0..1001, 1001..1001, 20..10, 0..u64::MAX];
    for range in bad {
        assert!(
            matches!(buffer.flush(range.clone()), Err(DeviceError::Range { len: 1000, .. })),
            "{range:?}"
        );
        assert!(matches!(buffer.invalidate(range, &completed), Err(DeviceError::Range { .. })));
    }
    let after = device.counters();
    assert_eq!(after.flushes - before.flushes, 2);
    assert_eq!(after.bytes_flushed - before.bytes_flushed, 1010);
    assert_eq!((after.invalidates - before.invalidates, after.bytes_invalidated), (1, 64));
}

#[test]
fn a_resident_buffer_has_no_cpu_view_until_it_is_mapped_again() {
    let (device, board) = device();
    let mut buffer = device.alloc(Purpose::Data, 8192).unwrap();
    assert_eq!((board.live().view_bytes, board.live().mappings), (8192, 1));
    fill(&mut buffer, 0, &[1; 8192]);
    buffer.flush(0..4096).unwrap();
    let iova = buffer.iova();
    let resident = buffer.unmap_host();
    assert_eq!((board.live().view_bytes, board.live().mappings, board.live().handles), (0, 0, 1));
    assert_eq!((resident.iova(), resident.len(), resident.domain()), (iova, 8192, DomainId(0)));
    let again = resident.map_host().unwrap();
    assert_eq!((again.host()[4095], again.host()[4096]), (1, 0), "only what was flushed is there");
    drop(again);
    assert_eq!(board.live().objects, 0);
}

#[test]
fn buffers_keep_the_device_open() {
    let (device, board) = device();
    let mut buffer = device.alloc(Purpose::Data, 4096).unwrap();
    let other = device.alloc_in(DomainId(1), Purpose::Tasks, 4096).unwrap();
    drop(device);
    fill(&mut buffer, 0, &[1]);
    buffer.flush(0..1).unwrap();
    drop(buffer);
    assert_eq!((board.live().files, board.live().handles, board.live().domains), (1, 1, 1));
    drop(other);
    assert_eq!(board.live(), Default::default());
}

#[test]
fn a_full_window_says_so() {
    let (device, _) = device();
    let _most = device.alloc(Purpose::Data, (1 << 32) - 4096 * 2).unwrap();
    let _last = device.alloc(Purpose::Data, 4096).unwrap();
    let error = device.alloc(Purpose::Data, 100).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EFAULT));
    assert!(error.to_string().contains("a Data buffer of 100 bytes in domain 0"), "{error}");
    assert!(error.hint().unwrap().contains("another domain"), "{error:?}");
    device.alloc_in(DomainId(1), Purpose::Data, 100).unwrap();
}

#[test]
fn a_failed_free_is_counted() {
    let emulated = EmuOptions { domain_wait_ms: 1, ..Default::default() };
    let device = Device::open(&DeviceOptions { emulated, ..options() }).unwrap();
    let board = device.board().unwrap().clone();
    let buffer = device.alloc(Purpose::Data, 4096).unwrap();
    let hold = board.hold_domain(7).unwrap();
    drop(buffer);
    assert_eq!((device.counters().failed_frees, device.counters().buffers_freed), (1, 0));
    assert!(device.counters().to_string().contains("1 FAILED TO FREE"));
    drop(hold);
    assert_eq!(board.live().handles, 1);
    drop(device);
    assert_eq!(board.live(), Default::default(), "closing the file frees it after all");
}

#[test]
fn domains_depend_on_the_driver() {
    let (device, _) = device();
    assert_eq!(device.domains(), 16);
    assert!(matches!(
        device.alloc_in(DomainId(16), Purpose::Data, 1),
        Err(DeviceError::Domain { domain: 16, domains: 16, .. })
    ));
    let emulated = EmuOptions { driver_version: [0, 9, 5], ..Default::default() };
    let device = Device::open(&DeviceOptions { emulated, ..options() }).unwrap();
    let error = device.alloc_in(DomainId(1), Purpose::Data, 1).unwrap_err();
    assert_eq!(error.to_string(), "domain 1 does not exist: rknpu 0.9.5 has 1");
}

#[test]
fn handles_and_devices_may_cross_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Device>();
    shared::<ork_device::DmaBuffer>();
    shared::<ork_device::ResidentBuffer>();
    shared::<ork_device::SubmitError>();
}
