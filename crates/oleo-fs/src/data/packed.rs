//! Compressed extents as they are on disk, which are always read whole.

use oleo_format::compress::{DecompressError, decompress_into};
use oleo_format::{Compression, Corruption, Logical};
use oleo_txn::{CsumCheck, Engine, TxnError};

use super::prepare::COMPRESSED_LEN_MAX;

/// The longest compressed extent that is decompressed; the format's limit is an eighth of it.
const RAM_LEN_MAX: u64 = 8 * COMPRESSED_LEN_MAX as u64;

/// A compressed extent on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackedExtent {
    /// Where it begins.
    pub at: Logical,
    /// Bytes on disk.
    pub disk_len: u64,
    /// Bytes when decompressed.
    pub ram_len: u64,
    /// How it was compressed.
    pub compression: Compression,
}

impl PackedExtent {
    /// Its bytes, `ram_len` in number.
    ///
    /// # Errors
    /// No copy can be read that matches its checksums. The image is damaged: more than eight times as long as the
    /// format has them, or not a stream that can be decompressed. This build is without that kind of compression.
    pub fn read(&self, engine: &Engine, check: CsumCheck) -> Result<Vec<u8>, TxnError> {
        self.check()?;
        let mut bytes = vec![0; self.ram_len as usize];
        self.read_into(engine, check, &mut bytes)?;
        Ok(bytes)
    }

    /// The same, to a place that is `ram_len` long.
    ///
    /// # Errors
    /// Those of [`PackedExtent::read`].
    pub fn read_into(&self, engine: &Engine, check: CsumCheck, out: &mut [u8]) -> Result<(), TxnError> {
        self.check()?;
        let mut packed = vec![0; self.disk_len as usize];
        engine.read_data(self.at, &mut packed, check)?;
        decompress_into(self.compression, &packed, out, engine.sectorsize()).map_err(|error| self.unreadable(error))
    }

    fn check(&self) -> Result<(), TxnError> {
        let longest = self.ram_len.max(self.disk_len);
        if longest > RAM_LEN_MAX {
            return Err(self.corrupt("length", &longest, &RAM_LEN_MAX));
        }
        Ok(())
    }

    fn unreadable(&self, error: DecompressError) -> TxnError {
        match error {
            DecompressError::FeatureOff(_) => TxnError::NotSupported(error.to_string()),
            broken => self.corrupt("data", &broken, &"a stream that can be decompressed"),
        }
    }

    fn corrupt(&self, what: &'static str, have: &dyn std::fmt::Display, want: &dyn std::fmt::Display) -> TxnError {
        Corruption::new("compressed extent", what, have, want).within(self.at).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oleo_format::{Class, Classified, errno};

    /// Goal: data of a kind that this build is without is a refusal that names the feature, other data that cannot be decompressed is
    /// damage.
    #[test]
    fn a_missing_feature_is_no_damage() {
        let compression = Compression::Zstd;
        let extent = PackedExtent { at: Logical(1 << 20), disk_len: 4096, ram_len: 8192, compression };
        let refused = extent.unreadable(DecompressError::FeatureOff(compression));
        assert_eq!(refused.class(), Class::refusal(errno::EOPNOTSUPP));
        assert!(refused.to_string().contains("the feature `zstd`"), "{refused}");
        assert_eq!(extent.unreadable(DecompressError::Broken(compression, "so")).class(), Class::DAMAGE);
    }
}
