// SPDX-License-Identifier: MIT OR Apache-2.0
//! Between rows and the atoms of a cube, many at a time.
//!
//! In a cube the atoms of a row lie a surface apart, and those of neighbouring rows behind each other. Row by row, each
//! cache line of the cube would be met four times, with all the others in between; in blocks of rows it is met once.
//!
//! The CPU's own prefetch does not help much, because neither side is read in the order of its addresses. So blocks go down
//! a group of rows before they go along them, and while one is moved the lines of the one beside it are read.

use std::array;
use std::hint::black_box;

pub(crate) const ATOM: usize = 16;
/// Rows, and atoms of each, that are moved together: whole cache lines on both sides, and as few of them as a
/// first-level cache holds although they may compete for the same set.
const BLOCK: usize = 16;

/// Rows of a group, of which columns of blocks are moved: runs of half a kilobyte in the cube. What is read ahead of both
/// sides, 16 KB, fits a first-level cache.
const GROUP_ROWS: usize = 32;

type Atom = [u8; ATOM];

/// Whole atoms of some rows, as rows and as a part of a cube.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    /// Rows.
    pub(crate) rows: usize,
    /// Atoms of each row.
    pub(crate) atoms: usize,
    /// Where the first row begins, in bytes.
    pub(crate) row_at: usize,
    /// Distance of the rows.
    pub(crate) row_pitch: usize,
    /// Where the first atom of the first row lies in the cube.
    pub(crate) cube_at: usize,
    /// Distance of the surfaces.
    pub(crate) surface_pitch: usize,
}

impl Moved {
    /// The blocks, group of rows by group of rows, and in a group column of blocks by column: each with where its first atom
    /// lies in the rows and in the cube, and whether another column follows.
    fn blocks(self) -> impl Iterator<Item = (Self, bool)> {
        (0..self.rows).step_by(GROUP_ROWS).flat_map(move |first| {
            let group = first..self.rows.min(first + GROUP_ROWS);
            (0..self.atoms).step_by(BLOCK).flat_map(move |atom| {
                let has_next = atom + BLOCK < self.atoms;
                group.clone().step_by(BLOCK).map(move |row| {
                    let block = Self {
                        rows: BLOCK.min(self.rows - row),
                        atoms: BLOCK.min(self.atoms - atom),
                        row_at: self.row_at + row * self.row_pitch + atom * ATOM,
                        cube_at: self.cube_at + atom * self.surface_pitch + row * ATOM,
                        ..self
                    };
                    (block, has_next)
                })
            })
        })
    }

    fn is_whole(self) -> bool {
        (self.rows, self.atoms) == (BLOCK, BLOCK)
    }

    /// Where each atom lies, in the rows and in the cube.
    fn places(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.atoms).flat_map(move |atom| {
            (0..self.rows).map(move |row| {
                let row_at = self.row_at + row * self.row_pitch + atom * ATOM;
                (row_at, self.cube_at + atom * self.surface_pitch + row * ATOM)
            })
        })
    }

    /// Reads something of each cache line of the block beside this one, where it comes from and where it goes: whoever
    /// moves it finds both near.
    fn touch_next(self, rows: &[u8], cube: &[u8]) -> u8 {
        (0..BLOCK).fold(0, |seen, index| {
            let row_at = self.row_at + index * self.row_pitch + BLOCK * ATOM;
            let cube_at = self.cube_at + (BLOCK + index) * self.surface_pitch;
            seen ^ touch(rows, row_at) ^ touch(cube, cube_at)
        })
    }

    /// Rows into a cube.
    ///
    /// # Panics
    /// If either is too short.
    pub(crate) fn scatter(self, rows: &[u8], cube: &mut [u8]) {
        let mut seen = 0;
        for (part, has_next) in self.blocks() {
            if !part.is_whole() {
                for (row_at, cube_at) in part.places() {
                    cube[cube_at..cube_at + ATOM].copy_from_slice(&rows[row_at..row_at + ATOM]);
                }
                continue;
            }
            if has_next {
                seen ^= part.touch_next(rows, cube);
            }
            let sources: [&[Atom; BLOCK]; BLOCK] =
                array::from_fn(|row| block(&rows[part.row_at + row * part.row_pitch..]));
            for atom in 0..BLOCK {
                let target = block_mut(&mut cube[part.cube_at + atom * part.surface_pitch..]);
                for (target, source) in target.iter_mut().zip(sources) {
                    *target = source[atom];
                }
            }
        }
        black_box(seen);
    }

    /// Rows out of a cube.
    ///
    /// # Panics
    /// If either is too short.
    pub(crate) fn gather(self, cube: &[u8], rows: &mut [u8]) {
        let mut seen = 0;
        for (part, has_next) in self.blocks() {
            if !part.is_whole() {
                for (row_at, cube_at) in part.places() {
                    rows[row_at..row_at + ATOM].copy_from_slice(&cube[cube_at..cube_at + ATOM]);
                }
                continue;
            }
            if has_next {
                seen ^= part.touch_next(rows, cube);
            }
            let sources: [&[Atom; BLOCK]; BLOCK] =
                array::from_fn(|atom| block(&cube[part.cube_at + atom * part.surface_pitch..]));
            for row in 0..BLOCK {
                let target = block_mut(&mut rows[part.row_at + row * part.row_pitch..]);
                for (target, source) in target.iter_mut().zip(sources) {
                    *target = source[row];
                }
            }
        }
        black_box(seen);
    }
}

/// Reads a byte of every 64 of a block's row or surface, if it is there.
fn touch(bytes: &[u8], at: usize) -> u8 {
    const LINE: usize = 64;
    let ahead: Option<&[u8; BLOCK * ATOM]> = bytes.get(at..).and_then(<[u8]>::first_chunk);
    ahead.map_or(0, |ahead| ahead.iter().step_by(LINE).fold(0, |seen, byte| seen ^ byte))
}

/// The first atoms of some bytes.
fn block(bytes: &[u8]) -> &[Atom; BLOCK] {
    let whole: &[u8; BLOCK * ATOM] = bytes.first_chunk().expect("a block lies inside its buffer");
    whole.as_chunks().0.first_chunk().expect("it holds as many atoms")
}

fn block_mut(bytes: &mut [u8]) -> &mut [Atom; BLOCK] {
    let whole: &mut [u8; BLOCK * ATOM] = bytes.first_chunk_mut().expect("a block lies inside its buffer");
    whole.as_chunks_mut().0.first_chunk_mut().expect("it holds as many atoms")
}
