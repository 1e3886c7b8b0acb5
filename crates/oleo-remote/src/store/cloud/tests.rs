//! What an answer of a store says, by a server that says what it is told to; the rest is in `tests/` of this crate, over
//! servers of others.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::*;
use crate::host::SystemHost;

/// Answers each connection's first request with this, and says what the requests were. None: closes without a word.
fn server(answers: Vec<Option<String>>) -> (String, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let endpoint = format!("http://{}", listener.local_addr().expect("address"));
    let thread = std::thread::spawn(move || {
        let mut requests = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().expect("accept");
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).expect("read") == 1 {
                request.push(byte[0]);
            }
            let request = String::from_utf8_lossy(&request).into_owned();
            let len = request
                .lines()
                .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            stream.read_exact(&mut vec![0; len.unwrap_or(0)]).expect("body");
            requests.push(request);
            if let Some(answer) = answer {
                stream.write_all(answer.as_bytes()).expect("write");
            }
        }
        requests
    });
    (endpoint, thread)
}

fn answer(status: &str, headers: &str, body: &str) -> Option<String> {
    let len = body.len();
    Some(format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len}\r\n{headers}\r\n{body}"))
}

fn options(endpoint: &str) -> StoreOptions {
    let mut options = StoreOptions { endpoint: Some(endpoint.into()), ..StoreOptions::default() };
    for (name, value) in [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b"), ("AWS_REGION", "r")] {
        options.settings.push((name.into(), value.into()));
    }
    options
}

fn store(endpoint: &str) -> CloudStore {
    CloudStore::open(&Url::parse("s3://bucket/a/b").expect("url"), &options(endpoint)).expect("store")
}

fn soon(store: &CloudStore) -> Deadline {
    store.host.now() + Duration::from_secs(20)
}

fn put(store: &CloudStore, cond: Cond) -> Result<Answer, StoreError> {
    let op = Op::Put { key: "head".into(), body: b"text".to_vec().into(), cond };
    store.submit(op, soon(store)).wait()
}

fn get(store: &CloudStore) -> Result<Answer, StoreError> {
    let op = Op::Get { key: "head".into(), range: None, len_max: 10, if_changed: None };
    store.submit(op, soon(store)).wait()
}

fn old() -> Cond {
    Cond::Match(Version { etag: "\"1\"".into(), generation: None })
}

/// Goal: only 412 says of S3 that a condition certainly was not met; after anything else that may have been carried out, the
/// outcome is unknown; nothing is repeated. Method: a row for each answer.
#[test]
fn answers_to_conditions() {
    let unknown = |e: &StoreError| matches!(e, StoreError::Unknown(_));
    let denied = |e: &StoreError| matches!(e, StoreError::Denied(_));
    type Is = fn(&StoreError) -> bool;
    let rows: [(&str, Is); 12] = [
        ("412 Precondition Failed", |e| *e == StoreError::Condition),
        ("409 Conflict", unknown),
        ("500 Internal Server Error", unknown),
        ("502 Bad Gateway", unknown),
        ("408 Request Timeout", unknown),
        ("503 Slow Down", |e| *e == StoreError::Throttled),
        ("429 Too Many", |e| *e == StoreError::Throttled),
        ("403 Forbidden", denied),
        ("401 Unauthorized", denied),
        ("301 Moved Permanently", denied),
        ("307 Temporary Redirect", denied),
        ("400 Bad Request", |e| matches!(e, StoreError::Wrong(_))),
    ];
    for cond in [Cond::Absent, old()] {
        let answers = rows.iter().map(|(status, _)| answer(status, "", "")).collect();
        let (endpoint, thread) = server(answers);
        let store = store(&endpoint);
        for (status, is) in rows {
            let error = put(&store, cond.clone()).expect_err(status);
            assert!(is(&error), "{status}: {error:?}");
        }
        assert_eq!(thread.join().expect("server").len(), rows.len());
    }
    let (endpoint, thread) = server(vec![None, answer("404 Not Found", "", ""), answer("404 Not Found", "", "")]);
    let store = store(&endpoint);
    assert!(unknown(&put(&store, old()).expect_err("closed without a word")));
    assert_eq!(put(&store, old()), Err(StoreError::Condition), "what is gone is not what was expected");
    assert!(matches!(put(&store, Cond::None), Err(StoreError::NoBucket(_))));
    let requests = thread.join().expect("server");
    assert!(requests[1].to_ascii_lowercase().contains("if-match: \"1\""), "{}", requests[1]);
    assert!(requests[1].starts_with("PUT /bucket/a/b/head "), "{}", requests[1]);
}

/// Goal: what was got is whole, or an error says so; the store's clock is taken from its answers.
#[test]
fn answers_with_bodies() {
    let head = "ETag: \"2\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    let cut = Some(format!("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n{head}\r\nfour"));
    let (endpoint, thread) = server(vec![
        answer("200 OK", head, "four"),
        answer("200 OK", head, "more than ten bytes"),
        cut,
        answer("304 Not Modified", head, ""),
        answer("404 Not Found", "", "<Error><Code>NoSuchKey</Code></Error>"),
        answer("404 Not Found", "", "<Error><Code>NoSuchBucket</Code><Message>gone</Message></Error>"),
        answer("200 OK", head, "0123456789"),
    ]);
    let store = store(&endpoint);
    assert_eq!(store.now(), None);
    let version = Some(Version { etag: "\"2\"".into(), generation: None });
    assert_eq!(get(&store), Ok(Answer::Object { body: b"four".to_vec(), version }));
    assert_eq!(store.now(), Some(StoreTime(784_111_777)));
    assert!(matches!(get(&store), Err(StoreError::Wrong(_))), "too long");
    assert!(matches!(get(&store), Err(StoreError::Unknown(_))), "cut off");
    let known = Some(Version { etag: "\"2\"".into(), generation: None });
    let op = Op::Get { key: "head".into(), range: None, len_max: 10, if_changed: known };
    assert_eq!(store.submit(op, soon(&store)).wait(), Ok(Answer::NotChanged));
    assert_eq!(get(&store), Err(StoreError::Absent));
    let error = get(&store).expect_err("no bucket");
    assert_eq!(error.to_string(), "the bucket does not exist (NoSuchBucket: gone)");
    let part = Op::Get { key: "head".into(), range: Some(2..5), len_max: 3, if_changed: None };
    let whole = store.submit(part, soon(&store)).wait();
    assert!(matches!(whole, Err(StoreError::Wrong(_))), "all of it instead of a part: {whole:?}");
    drop(store);
    assert_eq!(thread.join().expect("server").len(), 7);
}

/// Goal: Google and Azure are asked with their own words for the same, and versions come back as they have to be sent.
#[test]
fn other_clouds() {
    let headers = "ETag: \"7\"\r\nx-goog-generation: 7\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    let google = [("GOOGLE_BEARER_TOKEN", "token")];
    let azure = [("AZURE_STORAGE_ACCOUNT_NAME", "account"), ("AZURE_SKIP_SIGNATURE", "true")];
    let rows = [
        ("gs://bucket/a/b", &google[..], "x-goog-if-generation-match: 6", "x-goog-if-generation-match: 0"),
        ("az://bucket/a/b", &azure[..], "if-match: \"6\"", "if-none-match: *"),
    ];
    for (url, settings, is_match, is_absent) in rows {
        let created = || answer("201 Created", headers, "");
        let (endpoint, thread) = server(vec![
            created(),
            created(),
            answer("412 Precondition Failed", "", ""),
            answer("200 OK", headers, "four"),
        ]);
        let settings = settings.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let how = StoreOptions { endpoint: Some(endpoint), settings, ..StoreOptions::default() };
        let store = CloudStore::open(&Url::parse(url).expect("url"), &how).unwrap_or_else(|e| panic!("{url}: {e}"));
        let six = || Cond::Match(Version { etag: "\"6\"".into(), generation: Some("6".into()) });
        let stored = put(&store, six()).unwrap_or_else(|e| panic!("{url}: {e}"));
        put(&store, Cond::Absent).unwrap_or_else(|e| panic!("{url}: {e}"));
        assert_eq!(put(&store, six()), Err(StoreError::Condition), "{url}");
        let Answer::Object { body, version: Some(version) } = get(&store).expect(url) else { panic!("{url}") };
        assert_eq!(body, b"four");
        assert_eq!(Answer::Stored(version), stored, "{url}: what was stored is what is got");
        let requests = thread.join().expect("server");
        assert!(requests[0].replace("%2F", "/").starts_with("PUT /bucket/a/b/head"), "{}", requests[0]);
        assert!(requests[0].to_ascii_lowercase().contains(is_match), "{}", requests[0]);
        assert!(requests[1].to_ascii_lowercase().contains(is_absent), "{}", requests[1]);
    }
}

/// Goal: what Azure says in ways of its own is understood: that an object exists already, and what became of a deletion, which is
/// within a batch. Method: a row for each answer, and what is made of it.
#[test]
fn answers_of_azure() {
    let batch = |status: &str| {
        let part = "Content-Type: application/http\r\nContent-ID: 0";
        let body = format!("--b\r\n{part}\r\n\r\nHTTP/1.1 {status}\r\nx-ms-version: 1\r\n\r\n\r\n--b--\r\n");
        answer("202 Accepted", "Content-Type: multipart/mixed; boundary=b\r\n", &body)
    };
    let exists = "<Error><Code>BlobAlreadyExists</Code><Message>It exists.</Message></Error>";
    let leased = "<Error><Code>LeaseAlreadyPresent</Code><Message>Leased.</Message></Error>";
    let (endpoint, thread) = server(vec![
        answer("409 Conflict", "", exists),
        answer("409 Conflict", "", leased),
        batch("202 Accepted"),
        batch("404 The specified blob does not exist."),
        batch("403 Forbidden"),
        batch("500 Internal"),
    ]);
    let settings = [("AZURE_STORAGE_ACCOUNT_NAME", "account"), ("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")];
    let settings = settings.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    let how = StoreOptions { endpoint: Some(endpoint), settings, ..StoreOptions::default() };
    // Its prefix makes keys longer than the texts that are kept.
    let url = format!("az://bucket/{}", "long".repeat(TEXT_LEN_MAX / 4));
    let store = CloudStore::open(&Url::parse(&url).expect("url"), &how).expect("store");
    let delete = || store.submit(Op::Delete { key: "seg/0a/1-1".into() }, soon(&store)).wait();
    assert_eq!(put(&store, Cond::Absent), Err(StoreError::Condition));
    assert!(matches!(put(&store, Cond::Absent), Err(StoreError::Unknown(_))));
    assert_eq!(delete(), Ok(Answer::Deleted));
    assert_eq!(delete(), Ok(Answer::Deleted), "it was not there");
    assert!(matches!(delete(), Err(StoreError::Denied(_))));
    assert!(matches!(delete(), Err(StoreError::Unknown(_))));
    drop(store);
    let requests = thread.join().expect("server");
    assert!(requests[2].starts_with("POST /bucket"), "{}", requests[2]);
}

/// Goal: a store that is not there, and one that does not answer, are told apart, and neither takes longer than it may.
#[test]
fn no_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let endpoint = format!("http://{}", listener.local_addr().expect("address"));
    let silent = store(&endpoint);
    let deadline = silent.host.now() + Duration::from_millis(300);
    let op = Op::Delete { key: "head".into() };
    assert_eq!(silent.submit(op.clone(), deadline).wait(), Err(StoreError::TimedOut));
    assert!(silent.host.now() < deadline + Duration::from_secs(2));
    let under_way = silent.submit(op, soon(&silent));
    drop(silent);
    assert!(matches!(under_way.wait(), Err(StoreError::Unknown(_))));
    // Nobody listens there; the port of a test may be that of another one a moment later.
    let gone = get(&store("http://127.0.0.1:1"));
    assert!(matches!(gone, Err(StoreError::Away(_))), "{gone:?}");
}

/// Goal: nothing is sent in the clear to other machines unless that is allowed.
#[test]
fn plain_http() {
    let with = |endpoint: &str| {
        let url = Url::parse("s3://bucket/a").expect("url");
        CloudStore::open(&url, &options(endpoint)).map(drop).map_err(|e| e.to_string())
    };
    for endpoint in ["http://127.0.0.1:9000", "http://[::1]:9000/", "http://localhost", "https://example.com"] {
        with(endpoint).unwrap_or_else(|e| panic!("{endpoint}: {e}"));
    }
    for endpoint in
        ["http://example.com", "HTTP://10.0.0.1:9000", "http://localhost@example.com", "http://127.0.0.1.example.com"]
    {
        assert!(with(endpoint).expect_err(endpoint).contains("AWS_ALLOW_HTTP"), "{endpoint}");
    }
    let refused = with("http://user:hush@example.com").expect_err("a password in the clear");
    assert!(refused.contains("example.com") && !refused.contains("hush"), "{refused}");
    let mut allowed = options("http://example.com");
    allowed.set("AWS_ALLOW_HTTP=true").expect("set");
    CloudStore::open(&Url::parse("s3://bucket/a").expect("url"), &allowed).expect("allowed");
}

/// Goal: a store may be used, and dropped, from within another runtime.
#[test]
fn within_another_runtime() {
    let (endpoint, thread) = server(vec![answer("404 Not Found", "", "")]);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
    runtime.block_on(async {
        let store = store(&endpoint);
        assert_eq!(get(&store), Err(StoreError::Absent));
    });
    thread.join().expect("server");
}

/// Goal: names of contents are sent as they came, or without their quotation marks where that is asked for; the version that is known
/// stays as it was told.
#[test]
fn bare_etags() {
    for bare in [false, true] {
        let (endpoint, thread) = server(vec![answer("200 OK", "ETag: \"new\"\r\n", "")]);
        let options = StoreOptions { bare_etags: bare, ..options(&endpoint) };
        let store = CloudStore::open(&Url::parse("s3://bucket/a/b").expect("url"), &options).expect("store");
        let old = Version { etag: "\"old\"".into(), generation: None };
        let stored = put(&store, Cond::Match(old)).expect("stored");
        assert_eq!(stored, Answer::Stored(Version { etag: "\"new\"".into(), generation: None }));
        let request = thread.join().expect("server").remove(0).to_ascii_lowercase();
        let want = if bare { "if-match: old\r\n" } else { "if-match: \"old\"\r\n" };
        assert!(request.contains(want), "{request}");
    }
}

/// A host that passes reports of silent stores on.
struct Told(SystemHost, std::sync::Mutex<std::sync::mpsc::Sender<String>>);

impl Host for Told {
    fn now(&self) -> Duration {
        self.0.now()
    }
    fn sleep(&self, time: Duration) {
        self.0.sleep(time);
    }
    fn random(&self) -> [u8; 16] {
        self.0.random()
    }
    fn store_is_silent(&self, store: &str, time: Duration) {
        let line = format!("{store}: {time:?}");
        self.1.lock().expect("lock").send(line).expect("the test waits");
    }
}

/// Goal: a store that never answers is reported during the first attempt of a request, and one that answers is not. Method: a
/// listener that accepts nothing; reads, and writes with and without a condition.
#[test]
fn a_silent_store_is_reported() {
    let (tell, told) = std::sync::mpsc::channel();
    let host: Arc<dyn Host> = Arc::new(Told(SystemHost::new(), tell.into()));
    let open = |endpoint: &str| {
        let options = StoreOptions { host: host.clone(), ..options(endpoint) };
        CloudStore::open(&Url::parse("s3://bucket/a/b").expect("url"), &options).expect("store")
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    for cond in [None, Some(Cond::None), Some(old())] {
        let store = open(&format!("http://{}", listener.local_addr().expect("address")));
        let waiting = std::thread::spawn(move || match cond {
            None => get(&store),
            Some(cond) => put(&store, cond),
        });
        let line = told.recv_timeout(Duration::from_secs(15)).expect("before the request ends, after 20 s");
        assert_eq!(line, "s3://bucket/a/b: 2s");
        assert!(!waiting.is_finished());
    }
    drop(listener);
    let (endpoint, thread) = server(vec![answer("404 Not Found", "", "")]);
    assert_eq!(get(&open(&endpoint)), Err(StoreError::Absent));
    thread.join().expect("server");
    assert!(told.try_recv().is_err());
}
