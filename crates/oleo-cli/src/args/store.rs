//! What commands take for volumes on object stores: options, and what the environment says. All of it ends in
//! [`PlaceOptions`], which every way of opening an image takes.

use oleo::device::PlaceOptions;

/// How volumes on object stores are opened.
#[derive(clap::Args, Clone, Default)]
pub(crate) struct StoreArgs {
    /// Take over a volume on an object store that another writer holds or left open, without waiting for its claim to run
    /// out. The previous writer is fenced off.
    #[cfg(feature = "remote")]
    #[arg(long, help_heading = super::VOLUME_OPTIONS)]
    pub take_over: bool,
    /// Options of volumes on object stores, separated by commas, as in "claim=60,endpoint=URL"; `oleo remote --help` lists
    /// them.
    #[cfg(feature = "remote")]
    #[arg(long, value_name = "OPTS", help_heading = super::VOLUME_OPTIONS)]
    pub remote: Vec<String>,
}

/// Beginnings of variables that say how stores are reached, and whole names of some.
#[cfg(feature = "remote")]
const SETTINGS: [&str; 4] = ["AWS_", "GOOGLE_", "AZURE_", "HOME"];
/// Options for all volumes on object stores, as `--remote` takes them.
#[cfg(feature = "remote")]
const OPTIONS: &str = "OLEO_REMOTE";

impl StoreArgs {
    /// What the environment and the arguments say; the arguments win.
    ///
    /// # Errors
    /// An option is unknown, or its value makes no sense.
    #[cfg(feature = "remote")]
    pub fn places(&self) -> oleo::Result<PlaceOptions> {
        let mut places = PlaceOptions::default();
        let variables =
            || std::env::vars_os().filter_map(|(n, v)| Some((n.into_string().ok()?, v.into_string().ok()?)));
        places.remote.owner = owner();
        places.remote.on_wait = Some(std::sync::Arc::new(say_wait));
        oleo::remote::report_failing_stores(crate::out::warn);
        places.remote.settings.extend(variables().filter(|(name, _)| SETTINGS.iter().any(|b| name.starts_with(b))));
        let proxy = |(name, _): &(String, String)| name.eq_ignore_ascii_case("https_proxy");
        places.remote.proxy = variables().find(proxy).map(|(_, value)| value).filter(|value| !value.is_empty());
        if let Some((_, list)) = variables().find(|(name, _)| name == OPTIONS) {
            set(&mut places, &list)?;
        }
        for list in &self.remote {
            set(&mut places, list)?;
        }
        places.remote.take_over |= self.take_over;
        Ok(places)
    }

    /// There are none.
    #[cfg(not(feature = "remote"))]
    pub fn places(&self) -> oleo::Result<PlaceOptions> {
        Ok(PlaceOptions::default())
    }
}

#[cfg(feature = "remote")]
fn set(places: &mut PlaceOptions, list: &str) -> oleo::Result<()> {
    for word in list.split(',').filter(|word| !word.is_empty()) {
        if !places.set(word)? {
            let name = word.split('=').next().unwrap_or_default();
            return Err(oleo::Error::Request(format!("{name} is no option of volumes on object stores")));
        }
    }
    Ok(())
}

/// Says on standard error why a command waits.
#[cfg(feature = "remote")]
fn say_wait(wait: &oleo::remote::ClaimWait) {
    let (owner, seconds) = (crate::out::plain(&wait.owner, &[]), wait.most.as_secs());
    eprintln!("oleo: held by {owner}; waiting up to {seconds} s for a sign of life (--take-over does not wait)");
}

/// Who this is, for others who find a volume held.
#[cfg(feature = "remote")]
fn owner() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let user = std::env::var("USER").unwrap_or_else(|_| format!("user {}", rustix::process::geteuid().as_raw()));
    format!("{user} on {host}, process {}", std::process::id())
}

#[cfg(all(test, feature = "remote"))]
mod tests {
    use super::*;

    /// Goal: lists of options are read, later ones win, and what is unknown is named. Method: arguments, as clap would give them.
    #[test]
    fn lists() {
        let args = |lists: &[&str]| StoreArgs { take_over: false, remote: lists.iter().map(|l| (*l).into()).collect() };
        let places = args(&["claim=5,region=a", "claim=7"]).places().unwrap();
        assert_eq!(places.remote.claim.as_secs(), 7);
        assert_eq!(places.remote.region.as_deref(), Some("a"));
        assert!(!places.remote.take_over && places.remote.owner.contains("process"));
        let error = args(&["clam=5"]).places().unwrap_err();
        assert!(error.to_string().contains("clam"), "{error}");
        assert_eq!(error.kind(), oleo::ErrorKind::Usage);
    }
}
