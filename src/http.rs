//! One exchange over HTTP: bounded in time and in size, to the named place and to no other. No redirect is followed and
//! no proxy asked, for either would carry a secret elsewhere. Whose words cross it is its caller's concern.

mod secret;
mod socket;

pub use secret::Secret;

use crate::units::rights::writable_by_others;
use socket::{NoLookup, Socket};
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use ureq::config::Config;
use ureq::http::{HeaderName, HeaderValue, Response};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, Error};

/// All nodes of a cluster of ten thousand are about half of this (3 KB a node in 26.05).
const MOST_BODY_BYTES: u64 = 64 << 20;
/// What is read of the answer to something that was sent: its first words say what is wrong.
const MOST_WORDS_BYTES: u64 = 2 << 10;

/// Distributions' bundles have some 200 KiB.
const MOST_BUNDLE_BYTES: u64 = 4 << 20;

/// Where distributions keep the certificates that their programs trust.
const SYSTEM_BUNDLES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
];

/// What came back, whatever the status.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// Not always UTF-8: a job's name may hold any byte.
    pub body: Vec<u8>,
    /// The header Retry-After, as it came.
    pub retry_after: Option<String>,
}

/// Why nothing came back.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// The limit passed first.
    TimedOut,
    /// No connection, or none that could be trusted.
    Unreachable(String),
    /// Something came back, and it is no answer.
    Broken(String),
}

/// A server's address, and a client for it.
pub struct Server {
    agent: Agent,
    base: String,
}

impl Server {
    /// `http://host:port`, `https://host:port` or `unix:/path`. Nothing is connected yet.
    ///
    /// # Errors
    /// For https: there is nothing to trust on this host.
    pub fn at(url: &str) -> Result<Server, String> {
        Server::trusting(url, &SYSTEM_BUNDLES.map(Path::new))
    }

    /// The same where https trusts the certificates of this file and no others.
    ///
    /// # Errors
    /// The file holds none.
    pub fn known_by(url: &str, bundle: &Path) -> Result<Server, String> {
        Server::trusting(url, &[bundle])
    }

    fn trusting(url: &str, bundles: &[&Path]) -> Result<Server, String> {
        if let Some(path) = url.strip_prefix("unix:") {
            let socket = Socket(PathBuf::from(path));
            let agent = Agent::with_parts(configured(None), socket, NoLookup);
            return Ok(Server { agent, base: "http://localhost".to_owned() });
        }
        let tls = match url.starts_with("https:") {
            true => Some(trust(bundles)?),
            false => None,
        };
        let agent = Agent::new_with_config(configured(tls));
        Ok(Server { agent, base: url.trim_end_matches('/').to_owned() })
    }

    /// One question; connecting and looking up the name count against the limit too.
    pub fn get(
        &self,
        path: &str,
        headers: Vec<(&'static str, HeaderValue)>,
        limit: Duration,
    ) -> Result<Reply, Failure> {
        if limit.is_zero() {
            return Err(Failure::TimedOut);
        }
        let mut request = self.agent.get(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let mut response = request.config().timeout_global(Some(limit)).build().call().map_err(failure)?;
        let body = response.body_mut().with_config().limit(MOST_BODY_BYTES).read_to_vec().map_err(failure)?;
        Ok(replied(&response, body))
    }

    /// Sends a JSON text to the server's own address. Of the answer its status counts: of its body no more than the
    /// first words are read, and none of them need come.
    pub fn post(&self, json: &str, limit: Duration) -> Result<Reply, Failure> {
        if limit.is_zero() {
            return Err(Failure::TimedOut);
        }
        let request = self.agent.post(&self.base).header("Content-Type", "application/json");
        let sent = request.config().timeout_global(Some(limit)).build().send(json);
        let mut response = sent.map_err(failure)?;
        let mut words = Vec::new();
        let _ = response.body_mut().as_reader().take(MOST_WORDS_BYTES).read_to_end(&mut words);
        Ok(replied(&response, words))
    }
}

fn replied(response: &Response<Body>, body: Vec<u8>) -> Reply {
    let said = response.headers().get(HeaderName::from_static("retry-after"));
    let retry_after = said.and_then(|value| value.to_str().ok()).map(str::to_owned);
    Reply { status: response.status().as_u16(), body, retry_after }
}

/// Whether `host:port` stays on this host. A name that only begins like such an address is anybody's.
pub fn is_this_host(host_and_port: &str) -> bool {
    let host_and_port = host_and_port.trim_end_matches('/');
    let port = |port: &str| port.bytes().all(|b| b.is_ascii_digit());
    let host =
        host_and_port.rsplit_once(':').filter(|(_, end)| port(end)).map_or(host_and_port, |(host, _)| host);
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host == "localhost" || address.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

fn configured(tls: Option<TlsConfig>) -> Config {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        // A connection kept for the next question may be one that the server closes just then.
        .max_idle_connections(0)
        .user_agent(concat!("gpu-reaper-hc/", env!("CARGO_PKG_VERSION")))
        .accept("application/json");
    match tls {
        Some(tls) => config.tls_config(tls).build(),
        None => config.build(),
    }
}

/// The certificates of the first bundle that is there.
fn trust(bundles: &[&Path]) -> Result<TlsConfig, String> {
    let mut complaints = Vec::new();
    let mut read = |path| {
        let complain = |why| complaints.push(format!("`{}`: {why}", Path::display(path)));
        read_bundle(path).map_err(complain).ok().map(|pem| (path, pem))
    };
    let Some((path, pem)) = bundles.iter().copied().find_map(&mut read) else {
        return Err(format!("https: no certificates to trust: {}", complaints.join("; ")));
    };
    let roots: Vec<Certificate<'static>> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if roots.is_empty() {
        return Err(format!("https: no certificate in `{}`", path.display()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = TlsConfig::builder().root_certs(RootCerts::from(roots));
    Ok(builder.unversioned_rustls_crypto_provider(provider).build())
}

/// Who can write to this file decides whom we believe: only its owner may, and that is root or whoever runs us.
fn read_bundle(path: &Path) -> Result<Vec<u8>, String> {
    // A pipe of that name must not hold the run up.
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = opened.map_err(|e| e.to_string())?;
    let meta = file.metadata().map_err(|e| e.to_string())?;
    if !meta.is_file() {
        return Err("is no file".to_owned());
    }
    if let Some(why) = writable_by_others(meta.uid(), meta.gid(), meta.mode(), secret::us()) {
        return Err(why);
    }
    let mut pem = Vec::new();
    file.take(MOST_BUNDLE_BYTES + 1).read_to_end(&mut pem).map_err(|e| e.to_string())?;
    match pem.len() as u64 > MOST_BUNDLE_BYTES {
        true => Err(format!("has more than {MOST_BUNDLE_BYTES} bytes")),
        false => Ok(pem),
    }
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Timeout(_) => Failure::TimedOut,
        Error::BodyExceedsLimit(_) => Failure::Broken(format!("more than {MOST_BODY_BYTES} bytes")),
        Error::Protocol(_) | Error::Http(_) | Error::LargeResponseHeader(..) => {
            Failure::Broken(error.to_string())
        }
        other => Failure::Unreachable(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt;
    use std::thread;

    /// A server that proves itself with this certificate, once.
    fn serve(key: &rcgen::CertifiedKey<rcgen::KeyPair>) -> String {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let private = rustls::pki_types::PrivatePkcs8KeyDer::from(key.signing_key.serialize_der());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![key.cert.der().clone()], private.into())
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            let stream = listener.accept().unwrap().0;
            let session = rustls::ServerConnection::new(Arc::new(config)).unwrap();
            let mut stream = BufReader::new(rustls::StreamOwned::new(session, stream));
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).is_ok_and(|n| n > 0) {}
            let _ = stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
        });
        url
    }

    #[test]
    fn https_trusts_the_systems_certificates_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let [ours, other] =
            [(), ()].map(|()| rcgen::generate_simple_self_signed(["127.0.0.1".into()]).unwrap());
        let elsewhere = rcgen::generate_simple_self_signed(["10.0.0.1".into()]).unwrap();
        let bundle = folder.path().join("bundle.pem");
        std::fs::write(&bundle, format!("# ours\n{}{}", ours.cert.pem(), elsewhere.cert.pem())).unwrap();
        let none = folder.path().join("none.pem");
        let ask = |key| {
            let server = Server::trusting(&serve(key), &[&none, &bundle]).unwrap();
            server.get("/x", vec![], Duration::from_secs(10))
        };
        let reply = ask(&ours).unwrap();
        assert_eq!((reply.status, reply.body.as_slice()), (200, &b"{}"[..]));
        for key in [&other, &elsewhere] {
            let failure = ask(key).unwrap_err();
            assert!(
                matches!(&failure, Failure::Unreachable(why) if why.contains("certificate")),
                "{failure:?}"
            );
        }
        let nothing = Server::trusting("https://127.0.0.1:1", &[&none]).err().unwrap();
        assert!(nothing.starts_with("https: no certificates to trust: `"), "{nothing}");
        std::fs::write(&none, "no certificate").unwrap();
        assert!(Server::trusting("https://127.0.0.1:1", &[&none]).is_err());
        // Whose certificates anybody can change is not known by them; nor does a pipe hold anything up.
        std::fs::set_permissions(&bundle, Permissions::from_mode(0o666)).unwrap();
        let refused = |path: &Path| Server::known_by("https://127.0.0.1:1", path).err().unwrap();
        assert!(refused(&bundle).contains("is writable by others (mode 666)"));
        let pipe = std::ffi::CString::new(folder.path().join("pipe").into_os_string().into_encoded_bytes());
        let pipe = pipe.unwrap();
        // SAFETY: a path that lives through the call.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        assert!(refused(&folder.path().join("pipe")).ends_with("is no file"));
    }
}
