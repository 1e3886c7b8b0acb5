//! Images of containers: the layers of an OCI layout (a directory with `index.json` and `blobs`), as `skopeo copy … oci:DIR:TAG`,
//! `buildah push` and `docker buildx build --output type=oci,tar=false` write it.
//!
//! 1. `index.json` lists images; the tag chooses one, or there is only one.
//! 2. An image for several platforms is an index again; the one for this machine is taken.
//! 3. Its manifest lists the layers, the lowest first.
//!
//! The lengths of blobs are compared with what the index says; their digests are not computed.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::Value;

use crate::out::misuse;

/// Bytes of an index or manifest.
const JSON_BYTES_MAX: u64 = 4 << 20;
/// Indexes within indexes.
const DEPTH_MAX: usize = 4;
/// Layers of an image; more cannot be mounted by overlayfs either.
const LAYERS_MAX: usize = 500;

/// The layers of an image, the lowest first.
pub(super) fn layers(layout: &Path) -> anyhow::Result<Vec<Box<dyn Read + Send>>> {
    let (dir, tag) = with_tag(layout);
    let mut index = json(File::open(dir.join("index.json")), &dir.join("index.json"))?;
    let mut chosen = choose(&index, tag.as_deref(), None).with_context(|| dir.display().to_string())?;
    for _ in 0..DEPTH_MAX {
        let kind = chosen["mediaType"].as_str().unwrap_or_default();
        if !kind.ends_with("index.v1+json") && !kind.ends_with("manifest.list.v2+json") {
            break;
        }
        index = json(blob(&dir, &chosen), &dir)?;
        chosen = choose(&index, None, Some(architecture())).with_context(|| dir.display().to_string())?;
    }
    let manifest = json(blob(&dir, &chosen), &dir)?;
    let layers =
        manifest["layers"].as_array().with_context(|| format!("{}: the manifest lists no layers", dir.display()))?;
    if layers.len() > LAYERS_MAX {
        anyhow::bail!("{}: {} layers; at most {LAYERS_MAX} are supported", dir.display(), layers.len());
    }
    let open = |layer: &Value| -> anyhow::Result<Box<dyn Read + Send>> { Ok(Box::new(blob(&dir, layer)?)) };
    layers.iter().map(open).collect()
}

/// Directory and tag.
fn with_tag(layout: &Path) -> (PathBuf, Option<String>) {
    if !layout.is_dir()
        && let Some((dir, tag)) = layout.to_str().and_then(|text| text.rsplit_once(':'))
    {
        return (dir.into(), Some(tag.to_owned()));
    }
    (layout.to_owned(), None)
}

/// What this machine is called in indexes.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}

/// The only entry of an index that fits.
fn choose(index: &Value, tag: Option<&str>, architecture: Option<&str>) -> anyhow::Result<Value> {
    let entries = index["manifests"].as_array().context("the index lists no images")?;
    let name = |entry: &Value| entry["annotations"]["org.opencontainers.image.ref.name"].as_str().map(str::to_owned);
    let fits = |entry: &&Value| {
        tag.is_none_or(|tag| name(entry).as_deref() == Some(tag))
            && architecture.is_none_or(|wanted| entry["platform"]["architecture"].as_str() == Some(wanted))
    };
    let mut fitting = entries.iter().filter(fits);
    match (fitting.next(), fitting.next()) {
        (Some(one), None) => Ok(one.clone()),
        (None, _) if architecture.is_some() => Err(misuse!("no image for {}", architecture.unwrap_or_default())),
        (found, _) => {
            let names: Vec<String> = entries.iter().filter_map(name).collect();
            let what =
                if found.is_none() { "no image has this tag" } else { "there are several images; name one as DIR:TAG" };
            Err(misuse!("{what}; tags: {}", if names.is_empty() { "none".into() } else { names.join(", ") }))
        }
    }
}

/// Opens the blob that a descriptor names.
fn blob(dir: &Path, descriptor: &Value) -> std::io::Result<File> {
    let wrong = |text: String| std::io::Error::new(std::io::ErrorKind::InvalidData, text);
    let digest = descriptor["digest"].as_str().unwrap_or_default();
    let word = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric());
    let Some((algorithm, hex)) = digest.split_once(':').filter(|(algorithm, hex)| word(algorithm) && word(hex)) else {
        return Err(wrong(format!("{digest:?} is no digest of a blob")));
    };
    let path = dir.join("blobs").join(algorithm).join(hex);
    let file = File::open(&path).map_err(|error| wrong(format!("cannot open {}: {error}", path.display())))?;
    let (have, want) = (file.metadata()?.len(), descriptor["size"].as_u64());
    if want.is_some_and(|want| want != have) {
        return Err(wrong(format!("{} has {have} bytes, not {}", path.display(), want.unwrap_or(0))));
    }
    Ok(file)
}

fn json(file: std::io::Result<File>, name: &Path) -> anyhow::Result<Value> {
    let what = || format!("cannot read {}", name.display());
    let mut text = Vec::new();
    file.with_context(what)?.take(JSON_BYTES_MAX).read_to_end(&mut text).with_context(what)?;
    serde_json::from_slice(&text).with_context(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the layers of the right image are opened, in their order. Layouts that do not fit are refused, and no digest leads out of the
    /// layout. Method: a layout with two tags, one of them for two architectures; then one field wrong at a time.
    #[test]
    fn layouts() {
        let scratch = oleo_sim::oracle::Scratch::new().unwrap();
        let dir = scratch.path();
        std::fs::create_dir_all(dir.join("blobs/sha256")).unwrap();
        let put = |name: &str, text: &str| {
            std::fs::write(dir.join("blobs/sha256").join(name), text).unwrap();
            serde_json::json!({ "digest": format!("sha256:{name}"), "size": text.len() })
        };
        let manifest = |name: &str, layers: &[Value]| put(name, &serde_json::json!({ "layers": layers }).to_string());
        let (lower, upper) = (put("a1", "lower"), put("a2", "upper!"));
        let mut here = manifest("b1", &[lower.clone(), upper]);
        here["platform"] = serde_json::json!({ "architecture": architecture() });
        let mut elsewhere = manifest("b2", &[lower]);
        elsewhere["platform"] = serde_json::json!({ "architecture": "other" });
        let mut several = put("c1", &serde_json::json!({ "manifests": [elsewhere.clone(), here] }).to_string());
        several["mediaType"] = "application/vnd.oci.image.index.v1+json".into();
        let tagged = |mut entry: Value, tag: &str| {
            entry["annotations"] = serde_json::json!({ "org.opencontainers.image.ref.name": tag });
            entry
        };
        let index = |entries: &[Value]| {
            let text = serde_json::json!({ "manifests": entries }).to_string();
            std::fs::write(dir.join("index.json"), text).unwrap();
        };
        let read = |tag: &str| -> anyhow::Result<Vec<String>> {
            let name = if tag.is_empty() { dir.into() } else { PathBuf::from(format!("{}:{tag}", dir.display())) };
            layers(&name)?.into_iter().map(|mut layer| Ok(std::io::read_to_string(&mut layer)?)).collect()
        };
        index(&[tagged(several, "latest"), tagged(elsewhere.clone(), "old")]);
        assert_eq!(read("latest").unwrap(), ["lower", "upper!"]);
        assert_eq!(read("old").unwrap(), ["lower"]);
        assert!(format!("{:#}", read("").err().unwrap()).contains("latest, old"));
        assert!(read("new").is_err());
        index(&[elsewhere]);
        assert_eq!(read("").unwrap(), ["lower"]);
        std::fs::write(dir.join("blobs/sha256/a1"), "cut").unwrap();
        assert!(format!("{:#}", read("").err().unwrap()).contains("3 bytes"));
        for digest in ["", "sha256", "sha256:../../index.json", "../x:a1"] {
            index(&[serde_json::json!({ "digest": digest })]);
            assert!(read("").is_err(), "{digest}");
        }
    }
}
