// SPDX-License-Identifier: MIT OR Apache-2.0
use std::sync::Arc;

use ork_isa::soc::Soc;
use ork_layout::{Element, Format, WeightLayout};
use ork_plan::{PlanOptions, Refusal, admit, weight_layout_with};
use ork_quant::{Basis, QuantError, Scale, quantise_row};
use rayon::prelude::*;

use crate::DriverError;
use crate::check::{ProductCheck, VerifyMode};
use crate::driver::SOC;
use crate::residency::{Pinned, Place, Residency};
use crate::tiles::Tiles;

/// A weight in device memory: tiled, with one scale per output channel. Dropping it frees the memory.
///
/// Weights for products of floats as they are (see [`crate::Driver::load`]) are int8 with scales of their own; weights of
/// given elements have scales of 1.
#[derive(Debug)]
pub struct Weight {
    name: String,
    layout: WeightLayout,
    scales: Vec<Scale>,
    place: Place,
    check: Option<ProductCheck>,
    /// What activations go through before they are quantised, unless it changes nothing.
    basis: Option<Basis>,
}

/// Gives one output channel of a weight; see [`crate::Driver::load`].
type Rows<'a, T> = &'a (dyn Fn(usize, &mut [T]) + Sync);

impl Weight {
    /// Elements of a row.
    #[must_use]
    pub fn k(&self) -> usize {
        self.layout.k() as usize
    }

    /// Rows: output channels.
    #[must_use]
    pub fn n(&self) -> usize {
        self.layout.n() as usize
    }

    /// The name it was loaded under.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Precisions of the products it is for.
    #[must_use]
    pub fn format(&self) -> Format {
        self.layout.format()
    }

    /// Bytes of device memory.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        self.layout.bytes()
    }

    /// Waits until its bytes are in device memory, as its first product would: those of a pack arrive behind its loading. A
    /// streamed one is brought in.
    ///
    /// # Errors
    /// [`DriverError::Hold`].
    pub fn make_ready(&self) -> Result<(), DriverError> {
        self.pin().map(drop)
    }

    pub(crate) fn layout(&self) -> &WeightLayout {
        &self.layout
    }

    pub(crate) fn scales(&self) -> &[Scale] {
        &self.scales
    }

    /// What checks its products, if they are to be checked.
    pub(crate) fn check(&self) -> Option<&ProductCheck> {
        self.check.as_ref()
    }

    /// The basis that products of floats bring their activations into; `None` for the plain one. Codes that a caller
    /// quantised itself must be in it already.
    #[must_use]
    pub fn basis(&self) -> Option<&Basis> {
        self.basis.as_ref()
    }

    /// Whether it stays in RAM and is brought into device memory when it is used.
    #[must_use]
    pub fn is_streamed(&self) -> bool {
        matches!(self.place, Place::Streamed(_))
    }

    /// Its device memory, which it keeps while the pin lives.
    pub(crate) fn pin(&self) -> Result<Pinned<'_>, DriverError> {
        self.place.pin().map_err(|source| DriverError::Hold {
            name: self.name.clone(),
            k: self.k(),
            n: self.n(),
            bytes: self.layout.bytes(),
            source,
        })
    }

    /// Quantises f32 rows per output channel and uploads them.
    pub(crate) fn from_f32(
        (residency, verify): (&Arc<Residency>, VerifyMode),
        layout: WeightLayout,
        name: &str,
        rows: Rows<'_, f32>,
    ) -> Result<Self, DriverError> {
        let k = layout.k() as usize;
        Self::pack(
            (residency, verify),
            layout,
            name,
            |row| {
                let mut floats = vec![0f32; k];
                move |channel, codes: &mut [i8]| {
                    row(channel, &mut floats);
                    quantise_row(&floats, codes).map_err(|error| error.in_row(channel))
                }
            },
            rows,
        )
    }

    /// Uploads rows as they are; their scales are 1.
    pub(crate) fn from_elements<T: Element>(
        (residency, verify): (&Arc<Residency>, VerifyMode),
        layout: WeightLayout,
        name: &str,
        rows: Rows<'_, T>,
    ) -> Result<Self, DriverError> {
        let one = Scale::new(1.0).expect("1 is a scale");
        Self::pack(
            (residency, verify),
            layout,
            name,
            |row| {
                move |channel, elements: &mut [T]| {
                    row(channel, elements);
                    Ok(one)
                }
            },
            rows,
        )
    }

    /// Uploads codes that have scales already.
    pub(crate) fn from_codes(
        (residency, verify): (&Arc<Residency>, VerifyMode),
        layout: WeightLayout,
        name: &str,
        rows: &(dyn Fn(usize, &mut [i8]) -> Scale + Sync),
    ) -> Result<Self, DriverError> {
        let encoder = |_: Rows<'_, i8>| move |channel, codes: &mut [i8]| Ok(rows(channel, codes));
        Self::pack((residency, verify), layout, name, encoder, &|_, _| {})
    }

    /// Packs kernel groups in parallel. `encoder` makes one encoder per thread: it fills the elements of an output
    /// channel and gives its scale.
    fn pack<'r, T, C: Element, E>(
        (residency, verify): (&Arc<Residency>, VerifyMode),
        layout: WeightLayout,
        name: &str,
        encoder: impl Fn(Rows<'r, T>) -> E + Sync,
        rows: Rows<'r, T>,
    ) -> Result<Self, DriverError>
    where
        E: FnMut(usize, &mut [C]) -> Result<Scale, QuantError>,
    {
        let (k, n) = (layout.k() as usize, layout.n() as usize);
        let bytes = layout.bytes();
        let hold = |source| DriverError::Hold { name: name.to_owned(), k, n, bytes, source };
        let mut room = residency.room(bytes).map_err(hold)?;

        let group_rows = layout.format().kernel_group() as usize;
        let scales: Vec<Vec<Scale>> = layout
            .kernel_groups_mut(room.bytes_mut())
            .into_par_iter()
            .map_init(
                || (encoder(rows), vec![C::default(); group_rows * k]),
                |(encode, codes), mut group| {
                    let columns = group.columns();
                    let first = columns.start as usize;
                    let mut scales = Vec::with_capacity(group_rows);
                    for (place, channel) in codes.chunks_exact_mut(k).zip(first..columns.end as usize) {
                        scales.push(encode(channel, place)?);
                    }
                    let channels: Vec<&[C]> = codes.chunks_exact(k).take(scales.len()).collect();
                    group.pack(&channels);
                    Ok(scales)
                },
            )
            .collect::<Result<_, _>>()
            .map_err(|source| DriverError::Weight { name: name.to_owned(), source })?;

        let check = match verify {
            VerifyMode::Off => None,
            VerifyMode::Product => ProductCheck::of_packed(&layout, room.bytes_mut()),
        };
        let place = residency.settle(room).map_err(hold)?;
        let scales = scales.concat();
        Ok(Self { name: name.to_owned(), layout, scales, place, check, basis: None })
    }

    /// Uploads tiles that lie ready and have this layout.
    pub(crate) fn from_tiles(
        (residency, verify): (&Arc<Residency>, VerifyMode),
        layout: WeightLayout,
        name: &str,
        tiles: Tiles,
    ) -> Result<Self, DriverError> {
        let (k, n, bytes) = (tiles.k, tiles.n, layout.bytes());
        let check = match verify {
            VerifyMode::Off => None,
            VerifyMode::Product => {
                // From the stored bytes: what arrived in device memory is what is to be checked.
                let mut packed = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
                tiles.unpack().write(tiles.bytes.bytes(), &mut packed);
                ProductCheck::of_packed(&layout, &packed)
            }
        };
        let place = residency
            .place_tiles(bytes, tiles.unpack(), &tiles.bytes)
            .map_err(|source| DriverError::Hold { name: name.to_owned(), k, n, bytes, source })?;
        let basis = (!tiles.basis.steps().is_empty()).then_some(tiles.basis);
        Ok(Self { name: name.to_owned(), layout, scales: tiles.scales, place, check, basis })
    }
}

/// Whether an int8 weight can be on the NPU, without a device: what [`crate::Driver::check`] asks of its own options.
///
/// # Errors
/// [`DriverError::Layout`], [`DriverError::Declined`].
pub fn check_shape(k: usize, n: usize, options: &PlanOptions) -> Result<(), DriverError> {
    match admit(Format::INT8_INT32, k, n, &SOC, options) {
        Ok(_) => Ok(()),
        Err(Refusal::Layout(source)) => Err(DriverError::Layout { name: String::new(), source }),
        Err(Refusal::Declined(decline)) => Err(DriverError::Declined(decline)),
    }
}

/// The layout of a weight.
pub(crate) fn weight_layout_of(
    name: &str,
    format: Format,
    k: usize,
    n: usize,
    soc: &Soc,
    options: &PlanOptions,
) -> Result<WeightLayout, DriverError> {
    // A dimension beyond 32 bits is too large in any case; the layout says so with its numbers.
    let narrow = |dimension: usize| u32::try_from(dimension).unwrap_or(u32::MAX);
    weight_layout_with(format, narrow(k), narrow(n), soc, options)
        .map_err(|source| DriverError::Layout { name: name.to_owned(), source })
}
