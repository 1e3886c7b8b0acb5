//! Stores of clouds: S3 and what speaks as it does, Google, Azure.
//!
//! Each operation is one task of a runtime of its own ([`Store::submit`] spawns it, [`Ticket::wait`] waits on a channel), so
//! callers may be anywhere, in other runtimes too. It is one request: nothing below repeats anything, since only who knows
//! the deadline and the condition may. What an answer says of the outcome is decided by its status ([`Asked::known`]), which
//! `http` notes: a condition was certainly not met only at 412, and where Azure says 409 because the object exists.
//!
//! A store that goes with operations under way leaves their outcome unknown.

use std::error::Error as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    Extensions, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig,
    UpdateVersion,
};

use super::credentials::{Process, profile};
use super::http::{Clock, Connector, Marker, NOTED, Noted};
use super::{
    Answer, BYTES_PER_SECOND_MIN, Body, Cond, Deadline, Listed, Op, SILENT_MAX, Store, StoreTime, Ticket, Version,
    is_key, odd,
};
use crate::error::{RemoteError, StoreError};
use crate::host::Host;
use crate::options::StoreOptions;
use crate::url::{Cloud, Place, Url};

/// Threads of the runtime: they sign, encrypt and copy.
const THREADS: usize = 2;
/// How long after its deadline an operation's own word is waited for.
const MARGIN: Duration = Duration::from_secs(1);
/// Keys of one page of a listing.
const PAGE: usize = 1000;
/// Longest text of an error that is kept, characters.
const TEXT_LEN_MAX: usize = 200;

/// What a store of a cloud can do here.
trait Bucket: ObjectStore + PaginatedListStore {}
impl<T: ObjectStore + PaginatedListStore> Bucket for T {}

/// A store of a cloud; see the module's text.
pub struct CloudStore {
    asked: Asked,
    name: String,
    host: Arc<dyn Host>,
    clock: Clock,
    /// There until it is dropped.
    runtime: Option<tokio::runtime::Runtime>,
}

/// What an operation needs.
#[derive(Clone)]
struct Asked {
    bucket: Arc<dyn Bucket>,
    cloud: Cloud,
    /// With a slash behind it.
    prefix: Arc<str>,
    /// Whether conditions name contents without quotation marks.
    bare_etags: bool,
    /// Whether it ever answered: then keys were good.
    answered: Arc<AtomicBool>,
}

impl CloudStore {
    /// The store of a name; nothing is asked of it yet.
    ///
    /// # Errors
    /// The name is none of a cloud, or what is said of it makes no sense.
    pub fn open(url: &Url, options: &StoreOptions) -> Result<CloudStore, RemoteError> {
        let wrong = |what: String| RemoteError::Url { url: url.to_string(), what };
        let Place::Bucket { cloud, bucket, prefix } = &url.place else {
            return Err(wrong("is no name of a cloud".into()));
        };
        let clock = Clock::default();
        let connector = Connector::new(options, clock.clone()).map_err(wrong)?;
        let opened: Arc<dyn Bucket> = match cloud {
            Cloud::S3 => s3(bucket, options, connector).map_err(wrong)?,
            Cloud::Google => google(bucket, options, connector).map_err(wrong)?,
            Cloud::Azure => azure(bucket, options, connector).map_err(wrong)?,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("oleo-remote")
            .enable_all()
            .build()
            .map_err(|e| wrong(format!("cannot start threads: {e}")))?;
        let name = Url { pin: None, ..url.clone() }.to_string();
        let (prefix, bare_etags) = (format!("{prefix}/").into(), options.bare_etags);
        let asked = Asked { bucket: opened, cloud: *cloud, prefix, bare_etags, answered: Arc::default() };
        Ok(CloudStore { asked, name, host: options.host.clone(), clock, runtime: Some(runtime) })
    }
}

fn no_repeating() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

fn s3(bucket: &str, options: &StoreOptions, connector: Connector) -> Result<Arc<dyn Bucket>, String> {
    let profile = profile(options)?;
    let mut builder = AmazonS3Builder::new();
    // Keys of the environment go before a profile, unless it was named by an option.
    let own_keys = options.profile.is_none() && options.setting("AWS_ACCESS_KEY_ID").is_some();
    if let Some(region) = profile.get("region") {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = profile.get("endpoint_url") {
        builder = builder.with_endpoint(endpoint);
    }
    for (name, value) in &options.settings {
        use AmazonS3ConfigKey::{AccessKeyId, DefaultRegion, SecretAccessKey, Token};
        match name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
            Ok(AccessKeyId | SecretAccessKey | Token) if !own_keys => {}
            // That of the profile goes before the variable of last resort.
            Ok(DefaultRegion) if profile.get("region").is_some() => {}
            Ok(key) if name.starts_with("AWS_") && !value.is_empty() => builder = builder.with_config(key, value),
            Ok(_) | Err(_) => {}
        }
    }
    if let (false, Some((key, secret))) = (own_keys, profile.keys()) {
        builder = builder.with_access_key_id(key).with_secret_access_key(secret);
        if let Some(token) = profile.get("aws_session_token") {
            builder = builder.with_token(token);
        }
    } else if let (false, Some(command)) = (own_keys, profile.get("credential_process")) {
        builder = builder.with_credentials(Arc::new(Process::new(command)));
    }
    if let Some(region) = &options.region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
    }
    let endpoint = builder.get_config_value(&AmazonS3ConfigKey::S3Endpoint);
    let endpoint = endpoint.or_else(|| builder.get_config_value(&AmazonS3ConfigKey::Endpoint));
    check_endpoint(endpoint.as_deref(), options)?;
    let builder = builder
        .with_bucket_name(bucket)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_disable_bulk_delete(true)
        .with_retry(no_repeating())
        .with_allow_http(true)
        .with_http_connector(connector);
    Ok(Arc::new(builder.build().map_err(|e| said(&e))?))
}

fn google(bucket: &str, options: &StoreOptions, connector: Connector) -> Result<Arc<dyn Bucket>, String> {
    let mut builder = GoogleCloudStorageBuilder::new();
    for (name, value) in options.settings.iter().filter(|(name, _)| name.starts_with("GOOGLE_")) {
        if let Ok(key) = name.to_ascii_lowercase().parse::<GoogleConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_base_url(endpoint);
    }
    check_endpoint(builder.get_config_value(&GoogleConfigKey::BaseUrl).as_deref(), options)?;
    let builder = builder.with_bucket_name(bucket).with_retry(no_repeating()).with_http_connector(connector);
    Ok(Arc::new(builder.build().map_err(|e| said(&e))?))
}

fn azure(container: &str, options: &StoreOptions, connector: Connector) -> Result<Arc<dyn Bucket>, String> {
    let mut builder = MicrosoftAzureBuilder::new();
    for (name, value) in options.settings.iter().filter(|(name, _)| name.starts_with("AZURE_")) {
        if let Ok(key) = name.to_ascii_lowercase().parse::<AzureConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    check_endpoint(builder.get_config_value(&AzureConfigKey::Endpoint).as_deref(), options)?;
    let builder = builder
        .with_container_name(container)
        .with_retry(no_repeating())
        .with_allow_http(true)
        .with_http_connector(connector);
    Ok(Arc::new(builder.build().map_err(|e| said(&e))?))
}

/// Without encryption everybody on the way could read and change what is sent, except within this machine.
fn check_endpoint(endpoint: Option<&str>, options: &StoreOptions) -> Result<(), String> {
    let plain = endpoint.filter(|url| url.get(..7).is_some_and(|begin| begin.eq_ignore_ascii_case("http://")));
    let Some(plain) = plain else { return Ok(()) };
    let allowed = ["AWS_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP", "AZURE_ALLOW_HTTP"];
    let allowed = allowed.iter().filter_map(|name| options.setting(name));
    if is_loopback(&plain[7..]) || allowed.into_iter().any(|value| ["1", "true", "yes"].contains(&value)) {
        return Ok(());
    }
    let shown = plain.rsplit_once('@').map_or(plain.into(), |(_, host)| format!("http://{host}"));
    Err(format!("{shown} is not encrypted (AWS_ALLOW_HTTP=true allows it)"))
}

/// Whether what follows `http://` is this machine.
fn is_loopback(rest: &str) -> bool {
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let host = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((host, _)) => host,
        None => host.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// A piece of a body, which the client holds on to.
struct Piece {
    body: Body,
    number: usize,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        self.body.pieces().nth(self.number).unwrap_or_default()
    }
}

fn payload(body: &Body) -> PutPayload {
    let pieces = 0..body.pieces().count();
    pieces.map(|number| Bytes::from_owner(Piece { body: body.clone(), number })).collect()
}

impl Asked {
    fn path(&self, key: &str) -> Result<Path, StoreError> {
        if !is_key(key) {
            return Err(odd(&format!("key {key:?}")));
        }
        Path::parse(format!("{}{key}", self.prefix)).map_err(|e| odd(&e.to_string()))
    }

    async fn carry_out(&self, op: Op, noted: &Noted) -> Result<Answer, StoreError> {
        match op {
            Op::Get { key, range, len_max, if_changed } => {
                let if_none_match = if_changed.map(|version| version.etag);
                let options = GetOptions { if_none_match, ..GetOptions::default() };
                self.get(&self.path(&key)?, range, len_max, options, noted).await
            }
            Op::Put { key, body, cond } => self.put(&self.path(&key)?, &body, &cond, noted).await,
            Op::Delete { key } => match self.bucket.delete(&self.path(&key)?).await {
                Ok(()) => Ok(Answer::Deleted),
                Err(e) => match self.known(&e, noted) {
                    StoreError::Absent => Ok(Answer::Deleted),
                    other => Err(other),
                },
            },
            Op::List { prefix, after, count_max } => self.list(&prefix, &after, count_max, noted).await,
        }
    }

    async fn get(
        &self,
        path: &Path,
        range: Option<std::ops::Range<u64>>,
        len_max: u64,
        options: GetOptions,
        noted: &Noted,
    ) -> Result<Answer, StoreError> {
        let wanted = range.clone().map(|range| range.end - range.start);
        let options = GetOptions { range: range.map(GetRange::Bounded), extensions: marked(), ..options };
        let found = match self.bucket.get_opts(path, options).await {
            Ok(found) => found,
            Err(_) if noted.status() == Some(304) => return Ok(Answer::NotChanged),
            // It answered, and with something else than was asked for.
            Err(e) if matches!(noted.status(), Some(200..300)) => return Err(odd(&said(&e))),
            Err(e) => return Err(self.known(&e, noted)),
        };
        let version = self.version(found.meta.e_tag.clone(), found.meta.version.clone());
        let len = found.range.end - found.range.start;
        if len > len_max {
            return Err(odd(&format!("{len} bytes; {len_max} are the most")));
        }
        let mut body = Vec::with_capacity(len as usize);
        let mut stream = found.into_stream();
        while let Some(piece) = stream.next().await {
            let piece = piece.map_err(|e| StoreError::Unknown(said(&e)))?;
            if body.len() + piece.len() > len as usize {
                return Err(odd("more bytes than it said"));
            }
            body.extend_from_slice(&piece);
        }
        if body.len() as u64 != len {
            return Err(StoreError::Unknown("cut off".into()));
        }
        match wanted {
            Some(wanted) if wanted != len => Err(odd(&format!("{len} bytes instead of {wanted}"))),
            _ => Ok(Answer::Object { body, version }),
        }
    }

    async fn put(&self, path: &Path, body: &Body, cond: &Cond, noted: &Noted) -> Result<Answer, StoreError> {
        let mode = match cond.clone() {
            Cond::None => PutMode::Overwrite,
            Cond::Absent => PutMode::Create,
            Cond::Match(version) => {
                let etag = match self.bare_etags {
                    true => version.etag.trim_matches('"').to_owned(),
                    false => version.etag,
                };
                PutMode::Update(UpdateVersion { e_tag: Some(etag), version: version.generation })
            }
        };
        let options = PutOptions { mode, extensions: marked(), ..PutOptions::default() };
        match self.bucket.put_opts(path, payload(body), options).await {
            Ok(stored) => {
                let version = self.version(stored.e_tag, stored.version);
                version.map(Answer::Stored).ok_or_else(|| StoreError::Unknown("stored without an entity tag".into()))
            }
            Err(e) => Err(match (self.known(&e, noted), cond) {
                // What is not there is not what was expected.
                (StoreError::Absent, Cond::Match(_)) => StoreError::Condition,
                (StoreError::Absent, _) => StoreError::NoBucket(said(&e)),
                (StoreError::Condition, Cond::None) => StoreError::Unknown(said(&e)),
                (known, _) => known,
            }),
        }
    }

    async fn list(&self, prefix: &str, after: &str, count_max: usize, noted: &Noted) -> Result<Answer, StoreError> {
        let whole = format!("{}{prefix}", self.prefix);
        // Azure begins at the beginning.
        let offset = (self.cloud != Cloud::Azure && !after.is_empty()).then(|| format!("{}{after}", self.prefix));
        let (mut listed, mut page_token): (Vec<Listed>, _) = (Vec::new(), None);
        loop {
            let options = PaginatedListOptions {
                offset: offset.clone(),
                max_keys: Some(count_max.clamp(1, PAGE)),
                page_token: page_token.take(),
                extensions: marked(),
                ..PaginatedListOptions::default()
            };
            let page = self.bucket.list_paginated(Some(&whole), options).await.map_err(|e| self.known(&e, noted))?;
            for object in page.result.objects {
                let Some(key) = object.location.as_ref().strip_prefix(&*self.prefix) else { continue };
                if is_key(key) && key > after && key.starts_with(prefix) {
                    let modified = u64::try_from(object.last_modified.timestamp()).ok().map(StoreTime);
                    listed.push(Listed { key: key.into(), len: object.size, modified });
                }
            }
            page_token = page.page_token;
            if page_token.is_none() || listed.len() >= count_max {
                break;
            }
        }
        listed.sort_by(|a, b| a.key.cmp(&b.key));
        listed.truncate(count_max);
        Ok(Answer::Listed(listed))
    }

    /// `null` is what S3 calls the version in a bucket that once had versions; answers to `Put` do not have it.
    fn version(&self, etag: Option<String>, version: Option<String>) -> Option<Version> {
        let generation = version.filter(|version| version != "null");
        etag.map(|etag| Version { etag, generation })
    }

    /// What an error says of the outcome.
    fn known(&self, error: &object_store::Error, noted: &Noted) -> StoreError {
        let cause = cause(error);
        let text = line(&cause);
        // Azure deletes by a batch of one, in which the answer is.
        let within = |status: u16| if status == 202 { batched(&cause).unwrap_or(status) } else { status };
        let status = noted.status().map(within);
        let Some(status) = status else {
            return match noted.is_sent() {
                // Nothing was sent: there are no keys to sign it with.
                false if self.answered.load(Ordering::Relaxed) => StoreError::Away(text),
                false => StoreError::Denied(format!("no keys: {text}")),
                true if is_connecting(error) => StoreError::Away(text),
                true => StoreError::Unknown(text),
            };
        };
        let has = |codes: &[&str]| codes.iter().any(|code| text.contains(code));
        match status {
            404 if has(&["NoSuchBucket", "ContainerNotFound", "bucket does not exist"]) => StoreError::NoBucket(text),
            404 | 410 => StoreError::Absent,
            412 => StoreError::Condition,
            // So Azure says that what must not exist does.
            409 if self.cloud == Cloud::Azure && has(&["BlobAlreadyExists"]) => StoreError::Condition,
            301 | 302 | 307 | 308 => StoreError::Denied(format!("the bucket is in another region or place: {text}")),
            401 | 403 => StoreError::Denied(text),
            400 if has(&["ExpiredToken", "InvalidToken", "InvalidAccessKey", "AuthorizationHeaderMalformed"]) => {
                StoreError::Denied(text)
            }
            400 if has(&["RequestTimeout"]) => StoreError::Unknown(text),
            416 => odd("beyond the end"),
            429 | 503 => StoreError::Throttled,
            400..500 if status != 408 && status != 409 => StoreError::Wrong(text),
            _ => StoreError::Unknown(text),
        }
    }
}

fn marked() -> Extensions {
    let mut extensions = Extensions::new();
    extensions.insert(Marker);
    extensions
}

/// Whether there was no connection to send something over.
fn is_connecting(error: &object_store::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<HttpError>() {
            return error.kind() == HttpErrorKind::Connect;
        }
        cause = error.source();
    }
    false
}

/// The innermost cause, or what the store says in its words, in one line.
fn said(error: &object_store::Error) -> String {
    line(&cause(error))
}

/// The innermost cause.
fn cause(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    text
}

/// The status of the one answer in a batch, as the cause of an error ends with it.
fn batched(cause: &str) -> Option<u16> {
    cause.rsplit_once("(code: ")?.1.strip_suffix(')')?.parse().ok()
}

/// What the store says in its words, in one line.
fn line(text: &str) -> String {
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|(value, _)| value)
    };
    let text = match (element("Code"), element("Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code.to_owned(),
        (None, _) => text.to_owned(),
    };
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(TEXT_LEN_MAX).collect()
}

impl Store for CloudStore {
    fn submit(&self, op: Op, deadline: Deadline) -> Ticket {
        let Some(runtime) = &self.runtime else { return Ticket::new(|| Err(StoreError::Away("closed".into()))) };
        let began = self.host.now();
        let time = deadline.saturating_sub(began);
        // The store answers when it has all that is sent.
        let sent = if let Op::Put { body, .. } = &op { body.len() } else { 0 };
        let silent = SILENT_MAX + Duration::from_secs(sent / BYTES_PER_SECOND_MIN);
        let (tell, told) = sync_channel(1);
        let (asked, noted) = (self.asked.clone(), Arc::new(Noted::default()));
        let (host, name, seen) = (self.host.clone(), self.name.clone(), noted.clone());
        runtime.spawn(async move {
            let work = NOTED.scope(noted.clone(), asked.carry_out(op, &noted));
            let answer = tokio::time::timeout(time, work).await.unwrap_or(Err(StoreError::TimedOut));
            if answer.is_ok() {
                asked.answered.store(true, Ordering::Relaxed);
            }
            // Whoever does not wait does not want to know.
            let _gone = tell.send(answer);
        });
        Ticket::new(move || {
            let most = time + MARGIN;
            let first = (began + silent).saturating_sub(host.now()).min(most);
            let mut answer = told.recv_timeout(first);
            if answer == Err(RecvTimeoutError::Timeout) && first < most {
                if !seen.is_answered() {
                    host.store_is_silent(&name, silent);
                }
                answer = told.recv_timeout(most - first);
            }
            match answer {
                Ok(answer) => answer,
                Err(RecvTimeoutError::Timeout) => Err(StoreError::TimedOut),
                Err(RecvTimeoutError::Disconnected) => Err(StoreError::Unknown("the store was closed".into())),
            }
        })
    }

    fn describe(&self) -> String {
        self.name.clone()
    }

    fn now(&self) -> Option<StoreTime> {
        Some(self.clock.load(Ordering::Relaxed)).filter(|&seconds| seconds > 0).map(StoreTime)
    }
}

impl Drop for CloudStore {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // It waits for nothing, so that it may be dropped within another runtime.
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests;
