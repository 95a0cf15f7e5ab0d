// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which paths belong to the board.

/// Folders and names that a program sees as the board shows them; what the host has there is hidden.
const WATCHED: &[&str] = &[
    "/dev/dri",
    "/dev/accel",
    "/dev/dma_heap",
    "/dev/rknpu",
    "/dev/rga",
    "/proc/device-tree",
    "/proc/dri",
    "/proc/rknpu",
    "/sys/firmware/devicetree",
    "/sys/kernel/debug/rknpu",
    "/sys/class/devfreq",
    "/sys/class/drm",
    "/sys/class/accel",
    "/sys/class/dma_heap",
    "/sys/bus/platform/drivers/RKNPU",
    "/sys/bus/platform/drivers/rocket",
];
/// As [`WATCHED`], but the name goes on.
const WATCHED_STEMS: &[&str] = &[
    "/sys/dev/char/226:",
    "/sys/dev/char/261:",
    "/sys/devices/platform/fdab0000.npu",
    "/sys/devices/platform/27700000.npu",
    "/sys/devices/platform/fde40000.npu",
    "/sys/devices/platform/rknn",
];

/// Whether a path could be watched: a cheap look at its first bytes.
fn may_be_watched(path: &[u8]) -> bool {
    path.starts_with(b"/dev/") || path.starts_with(b"/proc/") || path.starts_with(b"/sys/") || is_untidy(path)
}

/// An absolute path that starts in an unusual way, such as `//dev` or `/./dev`.
fn is_untidy(path: &[u8]) -> bool {
    path.starts_with(b"//") || path.starts_with(b"/.")
}

/// An absolute path without empty parts, `.` and `..`. Links are not followed.
pub(crate) fn tidy(path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    let mut out = Vec::with_capacity(path.len() + 1);
    for part in parts {
        out.push(b'/');
        out.extend_from_slice(part);
    }
    if out.is_empty() {
        out.push(b'/');
    }
    out
}

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The host, as it is written.
    Host,
    /// The board; a tidy path.
    Board(Vec<u8>),
    /// The host, but by `..` out of a folder of the board, which the host may not have; a tidy path.
    BackToHost(Vec<u8>),
}

/// Where an absolute path leads.
pub(crate) fn place(path: &[u8]) -> Place {
    if !may_be_watched(path) {
        return Place::Host;
    }
    let tidy = tidy(path);
    if is_watched(&tidy) {
        return Place::Board(tidy);
    }
    let ups = path.windows(3).enumerate().filter(|(_, window)| *window == b"/..");
    let through_board = ups.map(|(at, _)| &path[..at]).any(|before| is_watched(&self::tidy(before)));
    if through_board { Place::BackToHost(tidy) } else { Place::Host }
}

/// Whether a tidy path belongs to the board.
fn is_watched(tidy: &[u8]) -> bool {
    let whole = |name: &&str| {
        tidy.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    };
    WATCHED.iter().any(whole) || WATCHED_STEMS.iter().any(|stem| tidy.starts_with(stem.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(path: &str) -> bool {
        matches!(place(path.as_bytes()), Place::Board(_))
    }

    #[test]
    fn the_way_out_of_the_board_does_not_need_its_folders() {
        assert_eq!(place(b"/dev/dri/.."), Place::BackToHost(b"/dev".to_vec()));
        assert_eq!(place(b"/dev/dri/by-path/../../null"), Place::BackToHost(b"/dev/null".to_vec()));
        assert_eq!(place(b"/dev/shm/../null"), Place::Host);
    }

    #[test]
    fn tidy_paths() {
        for (path, expected) in [
            ("/dev//dri/./card1", "/dev/dri/card1"),
            ("/dev/dri/../dri/card1/", "/dev/dri/card1"),
            ("/../..", "/"),
            ("/", "/"),
        ] {
            assert_eq!(tidy(path.as_bytes()), expected.as_bytes(), "{path}");
        }
    }

    #[test]
    fn what_is_watched() {
        for path in [
            "/dev/dri",
            "/dev/dri/card0",
            "//dev/dri/card1",
            "/dev/shm/../dri/card1",
            "/dev/rknpu",
            "/proc/device-tree/compatible",
            "/sys/firmware/devicetree/base/model",
            "/sys/dev/char/226:1/device",
            "/sys/dev/char/261:0",
            "/sys/class/drm",
        ] {
            assert!(watched(path), "{path}");
        }
        for path in [
            "/dev/drivers",
            "/dev/null",
            "/proc/self/maps",
            "/sys/dev/char/1:3",
            "/sys/devices/system/cpu",
            "/home/dev/dri/card1",
            "dev/dri/card1",
            "/",
        ] {
            assert!(!watched(path), "{path}");
        }
    }
}
