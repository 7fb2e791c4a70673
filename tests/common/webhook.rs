//! A web hook on the loopback, behind TLS, with a certificate of its own: it answers as it is told, and keeps what it was
//! sent.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// How one request is answered.
#[derive(Clone, Debug)]
pub enum Answer {
    /// With this status and these headers, a line each, and this body.
    Says(&'static str, String, &'static str),
    /// With a body that has no end.
    Endless,
    /// Not at all: the connection is taken and held.
    Never,
}

/// `200 OK`, and so is whatever no answer was set for.
pub const OK: Answer = Answer::Says("200 OK", String::new(), "ok");

/// The path that is the secret.
pub const SECRET: &str = "services/T0SECRET/B0SECRET/s3cr3tw0rd";

/// The server.
pub struct WebHook {
    folder: tempfile::TempDir,
    port: u16,
    answers: Arc<Mutex<VecDeque<Answer>>>,
    heard: Arc<Mutex<Vec<String>>>,
}

impl WebHook {
    pub fn new() -> WebHook {
        let key = rcgen::generate_simple_self_signed(["127.0.0.1".into()]).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let private = rustls::pki_types::PrivatePkcs8KeyDer::from(key.signing_key.serialize_der());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![key.cert.der().clone()], private.into())
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), key.cert.pem()).unwrap();
        let hook = WebHook { folder, port, answers: Arc::default(), heard: Arc::default() };
        hook.write_address(&hook.address());
        let (config, answers, heard) = (Arc::new(config), hook.answers.clone(), hook.heard.clone());
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for stream in listener.incoming().map_while(Result::ok) {
                let session = rustls::ServerConnection::new(config.clone()).unwrap();
                held.extend(serve(rustls::StreamOwned::new(session, stream), &answers, &heard));
            }
        });
        hook
    }

    pub fn address(&self) -> String {
        format!("https://127.0.0.1:{}/{SECRET}", self.port)
    }

    /// Into the file that the configuration names.
    pub fn write_address(&self, address: &str) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(self.file(), address).unwrap();
        std::fs::set_permissions(self.file(), std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    pub fn file(&self) -> PathBuf {
        self.folder.path().join("webhook")
    }

    pub fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// The key of the configuration.
    pub fn key(&self) -> String {
        self.key_with(&self.ca_file())
    }

    pub fn key_with(&self, ca_file: &Path) -> String {
        format!("slack: {{ webhook_file: {}, ca_file: {} }}\n", self.file().display(), ca_file.display())
    }

    /// How the next requests are answered.
    pub fn answers(&self, answers: impl IntoIterator<Item = Answer>) {
        self.answers.lock().unwrap().extend(answers);
    }

    /// The texts that came so far.
    pub fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

type Session = rustls::StreamOwned<rustls::ServerConnection, TcpStream>;

/// Gives the session back that is held.
fn serve(session: Session, answers: &Mutex<VecDeque<Answer>>, heard: &Mutex<Vec<String>>) -> Option<Session> {
    let mut stream = BufReader::new(session);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).is_ok_and(|n| n > 0) {}
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    // Whoever does not trust the certificate leaves here.
    if length.is_none() || stream.read_exact(&mut body).is_err() {
        return None;
    }
    assert!(head.starts_with(&format!("POST /{SECRET} HTTP/1.1\r\n")), "{head}");
    let sent: serde_json::Value = serde_json::from_slice(&body).unwrap();
    heard.lock().unwrap().push(sent["text"].as_str().unwrap().to_owned());
    let answer = answers.lock().unwrap().pop_front().unwrap_or(OK);
    let mut session = stream.into_inner();
    match answer {
        Answer::Never => return Some(session),
        Answer::Says(status, headers, body) => {
            let length = body.len();
            let text = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\n\r\n{body}");
            let _ = session.write_all(text.as_bytes());
        }
        Answer::Endless => {
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
            let _ = session.write_all(head.as_bytes());
            while session.write_all(chunk.as_bytes()).is_ok() {}
        }
    }
    let _ = session.flush();
    session.conn.send_close_notify();
    let _ = session.flush();
    None
}
