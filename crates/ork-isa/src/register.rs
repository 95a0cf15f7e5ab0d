// SPDX-License-Identifier: MIT OR Apache-2.0
use crate::Block;

/// A register as a detached value: build it, keep it, compare it, then emit it.
pub trait Register: Copy + Default {
    /// Name, place, fields and meaning.
    const DESC: &'static RegisterDesc;

    /// The 32-bit value.
    fn bits(self) -> u32;

    /// The register with this value; bits outside the named fields are kept.
    fn from_bits(bits: u32) -> Self;
}

/// What the register database says of one register.
#[derive(Debug, PartialEq, Eq)]
pub struct RegisterDesc {
    /// Block that holds it.
    pub block: Block,
    /// Name in the manual's spelling.
    pub name: &'static str,
    /// Offset from the base of the core.
    pub offset: u16,
    /// Value after reset, where a source gives one.
    pub reset: Option<u32>,
    /// Whether the register exists once per ping-pong group.
    pub shadowed: bool,
    /// What it is for.
    pub meaning: &'static str,
    /// Named bit ranges, highest first. All other bits are reserved.
    pub fields: &'static [FieldDesc],
}

impl RegisterDesc {
    /// The bits that some field names.
    #[must_use]
    pub fn named_mask(&self) -> u32 {
        self.fields.iter().fold(0, |mask, field| mask | field.mask())
    }
}

/// A named bit range of a register.
#[derive(Debug, PartialEq, Eq)]
pub struct FieldDesc {
    /// Name in the manual's spelling.
    pub name: &'static str,
    /// Highest bit.
    pub high: u8,
    /// Lowest bit.
    pub low: u8,
    /// What it does.
    pub meaning: &'static str,
}

impl FieldDesc {
    /// The largest value that the field can hold.
    #[must_use]
    pub const fn max(&self) -> u32 {
        let width = self.high - self.low + 1;
        if width == 32 { u32::MAX } else { (1 << width) - 1 }
    }

    /// The field's bits in the register.
    #[must_use]
    pub const fn mask(&self) -> u32 {
        self.max() << self.low
    }

    /// The field's value in a register value.
    #[must_use]
    pub const fn get(&self, bits: u32) -> u32 {
        (bits >> self.low) & self.max()
    }

    /// `bits` with the field replaced.
    ///
    /// # Errors
    /// [`FieldOverflow`] when `value` is wider than the field.
    pub fn set(&self, register: &'static str, bits: u32, value: u32) -> Result<u32, FieldOverflow> {
        if value > self.max() {
            return Err(FieldOverflow { register, field: self.name, value, max: self.max() });
        }
        Ok((bits & !self.mask()) | (value << self.low))
    }
}

/// A value does not fit the field that it was meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{register}.{field} cannot hold {value}: its largest value is {max}")]
pub struct FieldOverflow {
    /// Register name.
    pub register: &'static str,
    /// Field name.
    pub field: &'static str,
    /// The value that did not fit.
    pub value: u32,
    /// The largest value of the field.
    pub max: u32,
}

/// The register of `block` at `offset`, if the database has one.
#[must_use]
pub fn find_register(block: Block, offset: u16) -> Option<&'static RegisterDesc> {
    let registers = crate::regs::of(block);
    registers.binary_search_by_key(&offset, |desc| desc.offset).ok().map(|index| registers[index])
}

/// Declares the register types of one block and the table of their descriptions. Input is generated.
macro_rules! registers {
    ($block:ident; $(
        $(#[doc = $doc:literal])*
        $type:ident $name:literal $offset:literal reset $reset:expr, shadowed $shadowed:literal {
            $( #[doc = $fdoc:literal] $get:ident $set:ident $fname:literal $high:literal $low:literal; )*
        }
    )*) => {
        $(
            $(#[doc = $doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
            pub struct $type(pub u32);

            impl $crate::Register for $type {
                const DESC: &'static $crate::RegisterDesc = &$crate::RegisterDesc {
                    block: $crate::Block::$block,
                    name: $name,
                    offset: $offset,
                    reset: $reset,
                    shadowed: $shadowed,
                    meaning: concat!($($doc),*),
                    fields: &[ $( $crate::FieldDesc {
                        name: $fname, high: $high, low: $low, meaning: $fdoc,
                    } ),* ],
                };
                fn bits(self) -> u32 { self.0 }
                fn from_bits(bits: u32) -> Self { Self(bits) }
            }

            impl $type {
                $(
                    #[doc = $fdoc]
                    #[must_use]
                    pub const fn $get(self) -> u32 {
                        $crate::FieldDesc { name: $fname, high: $high, low: $low, meaning: "" }.get(self.0)
                    }

                    #[doc = concat!("Replaces `", $fname, "`:", $fdoc)]
                    ///
                    /// # Errors
                    /// [`crate::FieldOverflow`] when the value is wider than the field.
                    pub fn $set(self, value: u32) -> Result<Self, $crate::FieldOverflow> {
                        const FIELD: $crate::FieldDesc =
                            $crate::FieldDesc { name: $fname, high: $high, low: $low, meaning: "" };
                        FIELD.set($name, self.0, value).map(Self)
                    }
                )*
            }
        )*

        /// Every register of the block, by rising offset.
        pub static ALL: &[&$crate::RegisterDesc] = &[ $( <$type as $crate::Register>::DESC ),* ];
    };
}
pub(crate) use registers;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regs;

    #[test]
    fn setters_refuse_what_does_not_fit() {
        let size = regs::cna::DataSize0::default();
        assert_eq!(size.with_datain_width(2047).unwrap().datain_width(), 2047);
        let error = size.with_datain_width(2048).unwrap_err();
        assert_eq!(
            error,
            FieldOverflow { register: "DATA_SIZE0", field: "DATAIN_WIDTH", value: 2048, max: 2047 }
        );
        assert!(error.to_string().contains("2048"));
    }

    #[test]
    fn setters_replace_only_their_field() {
        let full = regs::cna::CbufCon0(u32::MAX).with_weight_bank(0).unwrap();
        assert_eq!(full.0, 0xFFFF_FF0F);
    }

    #[test]
    fn every_register_is_found_at_its_offset() {
        let mut count = 0;
        for block in Block::ALL {
            for desc in regs::of(block) {
                assert_eq!(find_register(block, desc.offset), Some(*desc), "{}", desc.name);
                count += 1;
            }
        }
        assert_eq!(count, 202);
        assert_eq!(find_register(Block::Cna, 0x100E), None);
    }

    #[test]
    fn fields_do_not_overlap() {
        for block in Block::ALL {
            for desc in regs::of(block) {
                let mut seen = 0u32;
                for field in desc.fields {
                    assert_eq!(seen & field.mask(), 0, "{}.{}", desc.name, field.name);
                    seen |= field.mask();
                }
            }
        }
    }
}
