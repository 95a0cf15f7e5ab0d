// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which file lies at an address. A plug-in is never told which model its host loads, but it sees where the host has
//! mapped it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The file that is mapped at an address of this process, if one is, and if it still has a name.
pub(crate) fn file_at(address: usize) -> Option<PathBuf> {
    path_at(&std::fs::read("/proc/self/maps").ok()?, address)
}

/// The same in the text of `/proc/PID/maps`: range, rights, offset, device, inode, path.
fn path_at(maps: &[u8], address: usize) -> Option<PathBuf> {
    maps.split(|&byte| byte == b'\n').find_map(|line| {
        let text = String::from_utf8_lossy(line);
        let (start, end) = text.split_whitespace().next()?.split_once('-')?;
        let number = |digits| usize::from_str_radix(digits, 16).ok();
        if !(number(start)?..number(end)?).contains(&address) {
            return None;
        }
        // The path is what follows the inode, whatever it holds; names of things that are no file are no paths.
        let path = line.iter().position(|&byte| byte == b'/').map(|at| unescaped(&line[at..]))?;
        (!path.ends_with(b" (deleted)")).then(|| OsString::from_vec(path).into())
    })
}

/// A line break in a path is written as `\\012`.
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, tail)) = rest.split_first() {
        match rest.strip_prefix(b"\\012") {
            Some(tail) => {
                out.push(b'\n');
                rest = tail;
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_lies_where_its_functions_are() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(file_at(file_at as *const () as usize), Some(own));
        let heap = Box::new(0u8);
        assert_eq!(file_at(std::ptr::from_ref(&*heap) as usize), None);
    }

    #[test]
    fn paths_are_read_as_they_are() {
        let maps = b"7f00-7f10 r--s 00000000 08:01 12    /models/a b/of \\012 two.gguf\n\
                     7f10-7f20 r--s 00000000 08:01 12    /models/gone.gguf (deleted)\n\
                     7f20-7f30 rw-p 00000000 00:00 0     [heap]\n";
        assert_eq!(path_at(maps, 0x7f0f), Some("/models/a b/of \n two.gguf".into()));
        assert_eq!(path_at(maps, 0x7f10), None);
        assert_eq!(path_at(maps, 0x7f25), None);
        assert_eq!(path_at(maps, 0x7f30), None);
    }
}
