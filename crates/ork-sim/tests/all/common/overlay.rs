// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of one execution: recorded pages that stay as they are, under the pages that it writes.

use std::collections::{BTreeMap, HashMap};
use std::sync::RwLock;

use ork_isa::Iova;
use ork_sim::{Access, Bus, BusFault, Span};

const PAGE: u64 = 4096;

/// Mapped ranges with their pages; pages that are not there are zero.
#[derive(Debug, Default)]
pub struct Image {
    /// First address and the one behind the last, by first address.
    mapped: BTreeMap<u64, u64>,
    pages: HashMap<u64, Box<[u8]>>,
}

impl Image {
    pub fn of(buffers: &[(Iova, Vec<u8>)]) -> Self {
        let mut image = Self::default();
        for (at, bytes) in buffers {
            let at = u64::from(at.0);
            image.mapped.insert(at, at + bytes.len() as u64);
            for (index, page) in bytes.chunks(PAGE as usize).enumerate() {
                if page.iter().any(|byte| *byte != 0) {
                    image.pages.insert(at / PAGE + index as u64, page.into());
                }
            }
        }
        image
    }

    fn covers(&self, iova: Iova, len: u64) -> bool {
        let (mut at, end) = (u64::from(iova.0), u64::from(iova.0) + len);
        while at < end {
            match self.mapped.range(..=at).next_back() {
                Some((_, behind)) if *behind > at => at = *behind,
                _ => return false,
            }
        }
        true
    }
}

/// An image under the writes of one execution.
pub struct Overlay<'a> {
    image: &'a Image,
    written: RwLock<HashMap<u64, Box<[u8]>>>,
}

impl<'a> Overlay<'a> {
    pub fn new(image: &'a Image) -> Self {
        Self { image, written: RwLock::default() }
    }

    /// Calls `each` with page number, place in the page and length of every part of a range.
    fn parts(iova: Iova, len: u64, mut each: impl FnMut(u64, usize, usize)) {
        let (mut at, end) = (u64::from(iova.0), u64::from(iova.0) + len);
        while at < end {
            let place = at % PAGE;
            let run = (PAGE - place).min(end - at);
            each(at / PAGE, place as usize, run as usize);
            at += run;
        }
    }

    /// Everything that was written, in order of addresses.
    pub fn written(&self) -> BTreeMap<u64, Vec<u8>> {
        let written = self.written.read().expect("no panic while it is held");
        written.iter().map(|(page, bytes)| (*page, bytes.to_vec())).collect()
    }
}

impl Bus for Overlay<'_> {
    fn read(&self, iova: Iova, len: u64) -> Result<Span<'_>, BusFault> {
        if !self.image.covers(iova, len) {
            return Err(BusFault { iova, len, access: Access::Read });
        }
        let written = self.written.read().expect("no panic while it is held");
        let mut bytes = Vec::with_capacity(len as usize);
        Self::parts(iova, len, |page, place, run| {
            match written.get(&page).or_else(|| self.image.pages.get(&page)) {
                Some(data) => bytes.extend_from_slice(&data[place..place + run]),
                None => bytes.resize(bytes.len() + run, 0),
            }
        });
        Ok(Span::new(bytes))
    }

    fn write(&self, iova: Iova, data: &[u8]) -> Result<(), BusFault> {
        let len = data.len() as u64;
        if !self.image.covers(iova, len) {
            return Err(BusFault { iova, len, access: Access::Write });
        }
        let mut written = self.written.write().expect("no panic while it is held");
        let mut rest = data;
        Self::parts(iova, len, |page, place, run| {
            let (now, later) = rest.split_at(run);
            let bytes = written.entry(page).or_insert_with(|| match self.image.pages.get(&page) {
                Some(page) => page.clone(),
                None => vec![0; PAGE as usize].into(),
            });
            bytes[place..place + run].copy_from_slice(now);
            rest = later;
        });
        Ok(())
    }
}
