//! Whose keys S3 is asked with: profiles, as the programs of AWS have them in two files of the home directory.
//!
//! `config` has sections `[default]` and `[profile NAME]`, `credentials` has `[NAME]`; what is in the second wins. Understood
//! are keys that stand there, a region, an endpoint, and a program that prints keys (`credential_process`), which is also the
//! way to all that is not understood here, such as signing in by a browser. What the environment says goes before a profile
//! that nobody named; roles of machines and containers come when there is none.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use serde::Deserialize;

use super::http::days_of;
use crate::options::StoreOptions;

/// Longest file that is read, bytes.
const FILE_LEN_MAX: u64 = 1 << 20;
/// Keys are asked for again so long before they run out.
const EARLY: Duration = Duration::from_secs(300);
/// And after this where the program does not say how long they last.
const KEPT: Duration = Duration::from_secs(900);

/// What a profile says.
#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct Profile {
    values: BTreeMap<String, String>,
}

impl Profile {
    /// A value; empty ones are none.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Key and secret, if both stand there.
    pub(super) fn keys(&self) -> Option<(&str, &str)> {
        self.get("aws_access_key_id").zip(self.get("aws_secret_access_key"))
    }
}

/// The profile that the options mean, which may be empty if none was named.
pub(super) fn profile(options: &StoreOptions) -> Result<Profile, String> {
    let named = options.profile.as_deref();
    let named = named.or_else(|| options.setting("AWS_PROFILE")).or_else(|| options.setting("AWS_DEFAULT_PROFILE"));
    let name = named.unwrap_or("default");
    let home = options.setting("HOME").map(PathBuf::from);
    let file = |setting: &str, file: &str| {
        let given = options.setting(setting).map(PathBuf::from);
        given.or_else(|| home.as_ref().map(|home| home.join(".aws").join(file)))
    };
    let in_config = if name == "default" { name.to_owned() } else { format!("profile {name}") };
    let files = [
        (file("AWS_CONFIG_FILE", "config"), in_config),
        (file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), name.to_owned()),
    ];
    let (mut profile, mut found) = (Profile::default(), false);
    for (path, section) in files {
        let Some(text) = path.as_deref().map(read).transpose()?.flatten() else { continue };
        if let Some(values) = section_of(&text, &section) {
            found = true;
            profile.values.extend(values);
        }
    }
    if named.is_some() && !found {
        return Err(format!("there is no profile {name}"));
    }
    let unknown = ["sso_session", "sso_start_url", "role_arn", "login_session"];
    let unknown = unknown.into_iter().find(|key| profile.get(key).is_some());
    match unknown {
        Some(key) if profile.keys().is_none() && profile.get("credential_process").is_none() => Err(format!(
            "profile {name} has {key}, which is not understood here; credential_process = aws configure \
             export-credentials --profile {name} in another profile does the same"
        )),
        _ => Ok(profile),
    }
}

/// A file, if it is there.
fn read(path: &Path) -> Result<Option<String>, String> {
    let wrong = |e: std::io::Error| format!("{}: {e}", path.display());
    match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(wrong(e)),
        Ok(meta) if meta.len() > FILE_LEN_MAX => Err(format!("{}: longer than it may be", path.display())),
        Ok(_) => std::fs::read_to_string(path).map(Some).map_err(wrong),
    }
}

/// The values of a section. Lines that are indented belong to the value before, and to nothing that is understood here.
fn section_of(text: &str, section: &str) -> Option<BTreeMap<String, String>> {
    let (mut values, mut inside) = (None, false);
    for line in text.lines().filter(|line| !line.starts_with([' ', '\t', '#', ';'])) {
        let line = line.trim_end();
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            inside = name.split_whitespace().eq(section.split_whitespace());
            if inside {
                values.get_or_insert_with(BTreeMap::new);
            }
        } else if inside
            && let Some((name, value)) = line.split_once('=')
            && let Some(values) = &mut values
        {
            values.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    values
}

/// Keys that a program prints.
#[derive(Debug)]
pub(super) struct Process {
    command: String,
    kept: tokio::sync::Mutex<Option<(Arc<AwsCredential>, SystemTime)>>,
}

/// What such a program prints.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Printed {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<String>,
}

impl Process {
    pub(super) fn new(command: &str) -> Process {
        Process { command: command.into(), kept: tokio::sync::Mutex::new(None) }
    }
}

#[async_trait::async_trait]
impl CredentialProvider for Process {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut kept = self.kept.lock().await;
        if let Some((credential, until)) = &*kept
            && SystemTime::now() < *until
        {
            return Ok(credential.clone());
        }
        let command = self.command.clone();
        let asked = tokio::task::spawn_blocking(move || ask(&command)).await;
        let asked = asked.map_err(|e| e.to_string()).and_then(|asked| asked);
        let (credential, until) = asked.map_err(|e| object_store::Error::Generic { store: "S3", source: e.into() })?;
        let credential = Arc::new(credential);
        *kept = Some((credential.clone(), until));
        Ok(credential)
    }
}

/// Runs the program.
fn ask(command: &str) -> Result<(AwsCredential, SystemTime), String> {
    let failed = |what: String| format!("credential_process: {what}");
    let output = Command::new("sh").args(["-c", command]).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| failed(e.to_string()))?;
    if !output.status.success() {
        return Err(failed(output.status.to_string()));
    }
    // What it printed is secret, also in an error.
    let printed: Printed =
        serde_json::from_slice(&output.stdout).map_err(|_| failed("prints something else".into()))?;
    if printed.version != 1 {
        return Err(failed(format!("version {} instead of 1", printed.version)));
    }
    let until = match printed.expiration.as_deref().and_then(time_of) {
        Some(time) => time.checked_sub(EARLY).unwrap_or(UNIX_EPOCH),
        None => SystemTime::now() + KEPT,
    };
    let credential = AwsCredential {
        key_id: printed.access_key_id,
        secret_key: printed.secret_access_key,
        token: printed.session_token,
    };
    Ok((credential, until))
}

/// The moment that `2026-11-24T23:59:00Z` names; other zones than that are not told apart from it where they are zero.
fn time_of(text: &str) -> Option<SystemTime> {
    let (date, rest) = text.split_once('T')?;
    let (time, zone) = rest.split_at_checked(8)?;
    if !(zone.ends_with('Z') || zone.ends_with("+00:00")) {
        return None;
    }
    let number = |text: &str| text.parse::<u64>().ok();
    let mut date = date.split('-').map(number);
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.split(':').map(number);
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    if !(1970..10_000).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let seconds = days_of(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(dir: &Path, more: &[(&str, &str)]) -> StoreOptions {
        let mut options = StoreOptions::default();
        options.settings.push(("HOME".into(), dir.to_str().expect("text").into()));
        options.settings.extend(more.iter().map(|(name, value)| ((*name).into(), (*value).into())));
        options
    }

    /// Goal: profiles say what the programs of AWS would read out of them. Method: two files with several, and each way to
    /// name one.
    #[test]
    fn profiles() {
        let dir = tempfile::tempdir().expect("dir");
        assert_eq!(profile(&options(dir.path(), &[])), Ok(Profile::default()), "no files");
        std::fs::create_dir(dir.path().join(".aws")).expect("dir");
        let config = "# text\n[default]\nregion = eu-1\n\n[profile far ]\nregion=far-1\nendpoint_url = http://far\ns3 =\n  \
                      region = wrong\n[profile sso]\nsso_session = x\n[profile program]\ncredential_process = echo\n";
        std::fs::write(dir.path().join(".aws/config"), config).expect("write");
        let keys = "[default]\naws_access_key_id = a\naws_secret_access_key = b\n[far]\nAWS_ACCESS_KEY_ID=c\n\
                    aws_secret_access_key=d=\n";
        std::fs::write(dir.path().join(".aws/credentials"), keys).expect("write");
        let of = |more: &[(&str, &str)]| profile(&options(dir.path(), more));
        let default = of(&[]).expect("default");
        assert_eq!((default.get("region"), default.keys()), (Some("eu-1"), Some(("a", "b"))));
        let far = of(&[("AWS_PROFILE", "far")]).expect("far");
        assert_eq!((far.get("region"), far.keys()), (Some("far-1"), Some(("c", "d="))));
        assert_eq!(far.get("endpoint_url"), Some("http://far"));
        assert!(of(&[("AWS_PROFILE", "none")]).is_err());
        assert!(of(&[("AWS_PROFILE", "sso")]).expect_err("sso").contains("credential_process"));
        assert_eq!(of(&[("AWS_PROFILE", "program")]).expect("program").get("credential_process"), Some("echo"));
        let mut named = options(dir.path(), &[("AWS_PROFILE", "none")]);
        named.profile = Some("far".into());
        assert_eq!(profile(&named), Ok(far));
    }

    /// Goal: keys that a program prints are taken for as long as it says, and what it prints reaches no error.
    #[test]
    fn programs() {
        let printed = |json: &str| ask(&format!("printf '%s' '{json}'"));
        let full = r#"{"Version":1,"AccessKeyId":"a","SecretAccessKey":"b","SessionToken":"c","Expiration":"2026-11-24T23:59:00Z"}"#;
        let (credential, until) = printed(full).expect("keys");
        assert_eq!((credential.key_id.as_str(), credential.token.as_deref()), ("a", Some("c")));
        assert_eq!(until, UNIX_EPOCH + Duration::from_secs(1_795_564_740 - 300));
        let (_, until) = printed(r#"{"Version":1,"AccessKeyId":"a","SecretAccessKey":"b"}"#).expect("keys");
        assert!(until > SystemTime::now());
        let error =
            printed(r#"{"Version":2,"AccessKeyId":"hush","SecretAccessKey":"hush"}"#).map(drop).expect_err("version");
        assert!(!error.contains("hush"), "{error}");
        let error = printed("hush").map(drop).expect_err("no JSON");
        assert!(!error.contains("hush"), "{error}");
        assert!(ask("exit 3").map(drop).expect_err("status").contains('3'));
    }
}
