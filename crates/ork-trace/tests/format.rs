// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of a trace: what is written is read, and nothing that a file can hold does harm.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use ork_trace::{Event, Header, MAJOR, Nested, Reader, Source, TraceError, Writer, limit};
use proptest::prelude::*;

fn header() -> Header {
    Header {
        source: Source::Emulated,
        driver: "rknpu".into(),
        driver_version: [0, 9, 8],
        soc: "rk3588".into(),
        program: vec!["./a".into(), "b c".into()],
        writer: "test".into(),
    }
}

fn events() -> Vec<Event> {
    vec![
        Event::Open { file: 1, node: "/dev/dri/card1".into() },
        Event::Buffer { file: 1, buffer: 7, offset: 1 << 32, len: 8192 },
        Event::Written { buffer: 7, at: 64, bytes: vec![1; 100] },
        Event::Call {
            file: 1,
            thread: 2,
            request: 0xC068_6441,
            errno: 110,
            input: vec![1, 2, 3],
            output: vec![],
            nested: vec![Nested { address: u64::MAX, bytes: vec![9; 5] }],
        },
        Event::Changed { buffer: 7, at: 8191, bytes: vec![0xFF] },
        Event::Visible { buffer: 7, at: 0, len: 8192 },
        Event::Drop { buffer: 7 },
        Event::Close { file: 1 },
        Event::End { events: 8 },
    ]
}

fn written(events: &[Event]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes, &header()).unwrap();
    for event in events {
        writer.write(event).unwrap();
    }
    writer.flush().unwrap();
    bytes
}

fn read(bytes: &[u8]) -> Result<(Vec<Event>, bool), TraceError> {
    let mut reader = Reader::new(bytes)?;
    let mut events = Vec::new();
    while let Some(event) = reader.next_event()? {
        events.push(event);
    }
    Ok((events, reader.is_complete()))
}

#[test]
fn what_is_written_is_read() {
    let bytes = written(&events());
    assert_eq!(Reader::new(&bytes[..]).unwrap().header(), &header());
    assert_eq!(read(&bytes).unwrap(), (events(), true));
    assert!(!read(&written(&events()[..4])).unwrap().1, "without its end a trace is not complete");
}

/// The layout is documented; a change of these bytes is a change of the version.
#[test]
fn the_layout_is_pinned() {
    let bytes = written(&[Event::Visible { buffer: 3, at: 0x0102, len: 4 }]);
    assert_eq!(bytes[..12], *b"ORKTRACE\x01\x00\x00\x00");
    let text = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    assert_eq!(
        bytes[16 + text..],
        [8, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]
    );
}

#[test]
fn another_major_version_is_named_and_an_unknown_kind_is_skipped() {
    let mut bytes = written(&events());
    bytes[8] = 2;
    let error = read(&bytes).unwrap_err();
    assert!(matches!(error, TraceError::Version { major: 2, minor: 0 }));
    assert!(
        error.to_string().contains("2.0") && error.to_string().contains(&format!("{MAJOR}.x")),
        "{error}"
    );

    let mut bytes = written(&events()[..1]);
    bytes.extend([200, 0, 0, 0, 3, 0, 0, 0, 1, 2, 3]);
    assert_eq!(read(&bytes).unwrap().0, events()[..1]);
}

#[test]
fn every_cut_is_found() {
    let bytes = written(&events());
    let whole = events().len();
    for len in 0..bytes.len() {
        match read(&bytes[..len]) {
            // A cut between records leaves fewer events, and no end.
            Ok((events, complete)) => assert!(events.len() < whole && !complete, "{len}"),
            Err(TraceError::Truncated { .. } | TraceError::NotATrace) => {}
            Err(other) => panic!("{len}: {other:?}"),
        }
    }
}

#[test]
fn lengths_beyond_their_limits_are_refused_before_anything_is_allocated() {
    let mut bytes = written(&[]);
    bytes.extend([6, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]);
    assert!(matches!(read(&bytes).unwrap_err(), TraceError::Limit { record: 1, value: 0xFFFF_FFFF, .. }));
    let large = Event::Written { buffer: 1, at: 0, bytes: vec![0; limit::RECORD_BYTES as usize] };
    let mut out = Vec::new();
    let error = Writer::new(&mut out, &header()).unwrap().write(&large).unwrap_err();
    assert!(matches!(error, TraceError::Limit { .. }), "{error:?}");
    let error =
        read(&written(&[Event::Buffer { file: 1, buffer: 1, offset: 0, len: u64::MAX }])).unwrap_err();
    assert!(matches!(error, TraceError::Limit { what: "buffer", .. }), "{error:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A trace with changed bytes is read or refused; nothing else happens.
    #[test]
    fn changed_bytes_do_no_harm(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = written(&events());
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        let _ = read(&bytes);
    }

    /// Any bytes behind a good header.
    #[test]
    fn any_records_do_no_harm(tail in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut bytes = written(&[]);
        bytes.extend(tail);
        let _ = read(&bytes);
    }

    /// Records with a good head and any body.
    #[test]
    fn any_body_does_no_harm(kind in 0_u32..12, body in prop::collection::vec(any::<u8>(), 0..80)) {
        let mut bytes = written(&[]);
        bytes.extend(kind.to_le_bytes());
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(body);
        let _ = read(&bytes);
    }
}
