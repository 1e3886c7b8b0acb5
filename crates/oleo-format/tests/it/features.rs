//! Kinds of compression that a build is without. `cargo test -p oleo-format --no-default-features --test it features::` is the test of a
//! build that has none.

use oleo_format::compress::{DecompressError, decompress_into, is_supported};
use oleo_format::{Class, Classified, Compression, compress, compress_inline, decompress, decompress_inline, errno};

const KINDS: [Compression; 3] = [Compression::Zlib, Compression::Lzo, Compression::Zstd];

/// Goal: data of a kind that was left out is refused by the name of the feature, not taken for damage, and new data is left as it
/// is; a kind that is there works.
#[test]
fn kinds_that_are_left_out() {
    let data = [7; 8192];
    for kind in KINDS {
        let packed = compress(kind, 0, &data, 4096);
        assert_eq!(packed.is_some(), is_supported(kind));
        assert_eq!(compress_inline(kind, 0, &data[..4096], 4096).is_some(), is_supported(kind));
        if let Some(packed) = packed {
            assert_eq!(decompress(kind, &packed, data.len(), 4096).as_deref(), Ok(&data[..]));
            continue;
        }
        let mut out = [0; 4096];
        let errors = [
            decompress(kind, &data, 8192, 4096).unwrap_err(),
            decompress_inline(kind, &data, 4096, 4096).unwrap_err(),
            decompress_into(kind, &data, &mut out, 4096).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error, DecompressError::FeatureOff(kind));
            assert_eq!(error.class(), Class::refusal(errno::EOPNOTSUPP));
            assert!(error.to_string().contains(&format!("without the feature `{}`", kind.name())), "{error}");
        }
    }
    assert!(is_supported(Compression::None));
}
