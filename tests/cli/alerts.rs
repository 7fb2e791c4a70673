//! Messages to a web hook and to the site's own program: what the real program sends, to a real TLS server on the
//! loopback, and what becomes of it where that does not take them.

use crate::webhook::{Answer, SECRET, WebHook};
use crate::*;
use std::os::unix::fs::PermissionsExt;

/// A node whose driver is missing, with a ledger, and these keys.
fn node(keys: &str) -> Node {
    let node = Node::new(&format!("gpu: {{ library: /nonexistent/libnvidia-ml.so.1 }}\n{keys}"));
    assert_eq!(node.health_check().status, Some(0));
    node
}

/// Lets a message wait, as a run that found something would.
fn letter(node: &Node, subject: &str, body: &str) {
    let sql = "INSERT INTO outbox (subject, body, queued_wall_ms, boot, next_boot_ms, tries)
               SELECT ?1, ?2, wall_ms, boot, 0, 0 FROM run ORDER BY id DESC LIMIT 1";
    ledger(node).execute(sql, (subject, body)).unwrap();
}

fn ledger(node: &Node) -> rusqlite::Connection {
    rusqlite::Connection::open(node.state().join("ledger.db")).unwrap()
}

/// What only time would do.
fn time_passes(node: &Node) {
    ledger(node).execute_batch("UPDATE outbox SET next_boot_ms = 0").unwrap();
}

fn waiting(node: &Node) -> String {
    node.ledger("SELECT count(*) FROM outbox WHERE sent_wall_ms IS NULL AND tries < 99")
}

/// A run with nothing of the secret in whatever can be read of it afterwards.
fn run(node: &Node) -> Said {
    let said = node.health_check();
    assert_eq!(said.status, Some(0), "{said:?}");
    // DependencyTrack/dependency-track#1159 (AL-07)
    let kept = fs::read(node.state().join("ledger.db")).unwrap();
    for text in [said.out.as_bytes(), said.err.as_bytes(), &kept] {
        for part in SECRET.split('/').skip(1).chain(["services/"]) {
            assert!(!text.windows(part.len()).any(|w| w == part.as_bytes()), "{part} in {said:?}");
        }
    }
    said
}

#[test]
fn a_message_is_sent_once_and_a_run_without_one_sends_nothing() {
    let hook = WebHook::new();
    let node = node(&hook.key());
    run(&node);
    assert_eq!(hook.heard(), Vec::<String>::new());
    letter(&node, "slack finding 1 alert", "*Alert*: job `7`");
    assert!(run(&node).err.contains("message `slack finding 1 alert` was taken"));
    run(&node);
    assert_eq!(hook.heard(), ["*Alert*: job `7`"]);
    assert_eq!(node.ledger("SELECT body FROM outbox"), "", "what was sent is not kept");
}

#[test]
fn at_most_three_messages_go_out_in_a_run() {
    let hook = WebHook::new();
    let node = node(&hook.key());
    for n in 0..5 {
        letter(&node, &format!("slack finding {n} alert"), &n.to_string());
    }
    run(&node);
    assert_eq!(hook.heard(), ["0", "1", "2"]);
    run(&node);
    assert_eq!(hook.heard(), ["0", "1", "2", "3", "4"]);
}

#[test]
fn a_server_that_wants_to_be_left_alone_is_and_the_message_arrives_later() {
    // YelpArchive/elastalert#1345, forseti-security/forseti-security#3356 (AL-01): re-sent each cycle.
    // Uninett/nav#2170 (AL-04): one 429 banned the channel for good.
    let hook = WebHook::new();
    let node = node(&hook.key());
    hook.answers([Answer::Says("429 Too Many Requests", "Retry-After: 3600\r\n".to_owned(), "slow down")]);
    letter(&node, "slack finding 1 alert", "one");
    let said = run(&node).err;
    assert!(
        said.contains("slack: HTTP status 429: `slow down`; messages wait and are tried again"),
        "{said}"
    );
    let waits =
        "SELECT (next_boot_ms - (SELECT boottime_ms FROM run ORDER BY id DESC LIMIT 1)) / 60000 FROM outbox";
    assert_eq!(node.ledger(waits), "60", "as long as it asked for");
    for _ in 0..3 {
        assert!(!run(&node).err.contains("429"));
    }
    assert_eq!(hook.heard().len(), 1, "one attempt a step");
    letter(&node, "slack finding 2 alert", "two");
    let said = run(&node).err;
    assert_eq!(hook.heard(), ["one", "two"], "nobody else waits for it");
    assert!(said.contains("slack takes messages again"), "{said}");
    time_passes(&node);
    run(&node);
    assert_eq!(hook.heard(), ["one", "two", "one"]);
    assert_eq!(waiting(&node), "0");
    assert_eq!(node.ledger("SELECT value FROM tally WHERE name = 'deed_error' AND labels = 'slack'"), "1");
}

#[test]
fn a_broken_server_is_tried_ever_more_rarely_told_once_and_given_up() {
    // home-assistant/core#30665 (AL-02), NVIDIA/DCGM#279 (LG-03)
    let hook = WebHook::new();
    let node = node(&hook.key());
    let broken = Answer::Says("503 Service Unavailable", String::new(), "");
    hook.answers(vec![broken; 8]);
    letter(&node, "slack finding 1 alert", "one");
    let mut told = 0;
    for attempt in 1..=8 {
        time_passes(&node);
        let said = run(&node).err;
        told += said.matches("slack: HTTP status 503").count();
        let given_up = "message `slack finding 1 alert` is given up after 8 attempts";
        assert_eq!(said.contains(given_up), attempt == 8, "{attempt}: {said}");
    }
    assert_eq!((told, hook.heard().len()), (1, 8));
    time_passes(&node);
    run(&node);
    assert_eq!(hook.heard().len(), 8);
    assert_eq!(node.ledger("SELECT count(*) FROM outbox"), "1", "no failure made a message of its own");
}

#[test]
fn what_a_server_refuses_for_good_is_told_and_not_repeated() {
    let hook = WebHook::new();
    let node = node(&hook.key());
    // An address that is no longer the right one is mended by a person: the message waits for that.
    hook.answers([
        Answer::Says("404 Not Found", String::new(), "no_service"),
        Answer::Says("400 Bad Request", String::new(), "invalid_payload"),
    ]);
    letter(&node, "slack finding 1 alert", "one");
    let said = run(&node).err;
    assert!(said.contains("slack: HTTP status 404: `no_service`; messages wait"), "{said}");
    time_passes(&node);
    let said = run(&node).err;
    assert!(said.contains("slack: HTTP status 400: `invalid_payload`"), "{said}");
    assert!(said.contains("is given up after 2 attempts"), "{said}");
    time_passes(&node);
    run(&node);
    assert_eq!(hook.heard().len(), 2);
}

#[test]
fn an_answer_that_repeats_the_address_is_shown_without_it() {
    // DependencyTrack/dependency-track#1159 (AL-07): `run` looks for it in everything.
    let hook = WebHook::new();
    let node = node(&hook.key());
    hook.answers([Answer::Says(
        "403 Forbidden",
        String::new(),
        "no /services/T0SECRET/B0SECRET/s3cr3tw0rd here",
    )]);
    letter(&node, "slack finding 1 alert", "one");
    assert!(run(&node).err.contains("slack: HTTP status 403: `no /(address)"));
    for args in [&["--explain", "7"][..], &["config", "show"], &["config", "check"], &["doctor"]] {
        let said = node.call(args);
        assert!(!said.out.contains("s3cr3t") && !said.err.contains("s3cr3t"), "{said:?}");
    }
}

#[test]
fn a_server_that_never_answers_costs_three_seconds_and_no_more() {
    let hook = WebHook::new();
    let node = node(&hook.key());
    hook.answers([Answer::Never, Answer::Never]);
    for n in 0..2 {
        letter(&node, &format!("slack finding {n} alert"), "text");
    }
    let said = run(&node);
    assert!(said.err.contains("slack: no answer in time; messages wait"), "{said:?}");
    assert!(said.took >= Duration::from_millis(2500) && said.took < Duration::from_secs(8), "{said:?}");
    assert_eq!(hook.heard().len(), 1, "the other one waits for the next run");
}

#[test]
fn an_answer_without_end_is_an_answer_all_the_same() {
    let hook = WebHook::new();
    let node = node(&hook.key());
    hook.answers([Answer::Endless]);
    letter(&node, "slack finding 1 alert", "text");
    assert!(run(&node).err.contains("was taken"));
    assert_eq!(waiting(&node), "0");
}

#[test]
fn no_redirect_is_followed() {
    let (hook, elsewhere) = (WebHook::new(), WebHook::new());
    let node = node(&hook.key());
    let location = format!("Location: {}\r\n", elsewhere.address());
    for status in ["302 Found", "307 Temporary Redirect"] {
        hook.answers([Answer::Says(status, location.clone(), "")]);
        letter(&node, &format!("slack finding {} alert", &status[..3]), "text");
        let said = run(&node).err;
        let want = format!("slack: HTTP status {}: no redirect is followed", &status[..3]);
        assert!(said.contains(&want), "{said}");
    }
    assert_eq!((hook.heard().len(), elsewhere.heard().len(), waiting(&node).as_str()), (2, 0, "2"));
}

#[test]
fn nothing_is_sent_to_a_server_that_cannot_be_trusted_or_reached() {
    let (hook, other) = (WebHook::new(), WebHook::new());
    let cases = [
        (hook.key_with(&other.ca_file()), hook.address(), "invalid peer certificate"),
        (
            hook.key_with(Path::new("/nonexistent")),
            hook.address(),
            "not sent: https: no certificates to trust",
        ),
        (hook.key(), format!("https://127.0.0.1:1/{SECRET}"), "not reached: "),
        (hook.key(), format!("http://hooks.example/{SECRET}"), "holds no https:// address"),
        (hook.key(), format!("https://user:s3cr3tw0rd@127.0.0.1/{SECRET}"), "holds no https:// address"),
        (hook.key(), String::new(), "holds no webhook: one word is expected"),
    ];
    for (key, address, want) in cases {
        let node = node(&key);
        hook.write_address(&address);
        letter(&node, "slack finding 1 alert", "text");
        let said = run(&node).err;
        assert!(said.contains(want), "{want}: {said}");
        assert_eq!(waiting(&node), "1", "{want}");
    }
    assert_eq!(hook.heard(), Vec::<String>::new());
}

#[test]
fn a_webhook_that_others_can_read_is_not_used() {
    let hook = WebHook::new();
    let node = node(&hook.key());
    letter(&node, "slack finding 1 alert", "text");
    fs::set_permissions(hook.file(), fs::Permissions::from_mode(0o640)).unwrap();
    let said = run(&node).err;
    assert!(said.contains("can be read or written by others (mode 0640); allowed: 0600 or 0400"), "{said}");
    let doctor = node.call(&["doctor"]).out;
    assert!(doctor.contains(" alerts: `slack.webhook_file`: webhook file `"), "{doctor}");
    assert!(!doctor.contains("s3cr3t"), "{doctor}");
    assert_eq!(hook.heard(), Vec::<String>::new());
    fs::set_permissions(hook.file(), fs::Permissions::from_mode(0o600)).unwrap();
    time_passes(&node);
    run(&node);
    assert_eq!(hook.heard(), ["text"]);
}

/// A program of the site's, in a folder that root alone can write.
pub fn site_program(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("page");
    crate::slurm::install(&path, text);
    path
}

#[test]
fn the_sites_program_gets_one_event_on_its_standard_input_and_next_to_nothing_else() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let told = folder.path().join("told");
    let script = format!("#!/bin/sh\n{{ cat; echo; env | sort; echo \"$@\"; }} >> {}\n", told.display());
    let program = site_program(folder.path(), &script);
    let node = node(&format!("notify: {{ exec: [{}, --to, 'night shift'] }}\n", program.display()));
    letter(&node, "exec finding 1 alert", "{\"schema\":1}");
    let said = run(&node).err;
    // /var/tmp is anybody's, with the sticky bit: as good as a folder of root's.
    assert!(said.contains("message `exec finding 1 alert` was taken"), "{said}");
    let told = fs::read_to_string(told).unwrap();
    let want = "{\"schema\":1}\nLC_ALL=C\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\nPWD=/\n--to night shift\n";
    assert_eq!(told.replace("OLDPWD=/\n", "").replace("_=/usr/bin/env\n", ""), want);
}

#[test]
fn a_program_that_fails_or_hangs_is_tried_again_and_holds_nobody_up() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let program = site_program(folder.path(), "#!/bin/sh\necho busy >&2\nexit 3\n");
    let key = format!("notify: {{ exec: [{}] }}\n", program.display());
    let node = node(&key);
    letter(&node, "exec finding 1 alert", "{}");
    let said = run(&node).err;
    assert!(said.contains("ended with exit status: 3: `busy`; messages wait"), "{said}");
    crate::slurm::install(&program, "#!/bin/sh\nsleep 60 & sleep 60\n");
    time_passes(&node);
    let said = run(&node);
    assert!(said.err.contains("did not end in time and was killed"), "{said:?}");
    assert!(said.took < Duration::from_secs(8), "{said:?}");
    // SAFETY: asks for a number and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return println!("skipped in part: who may write a program is looked at by root alone");
    }
    fs::set_permissions(&program, fs::Permissions::from_mode(0o777)).unwrap();
    time_passes(&node);
    let said = run(&node).err;
    assert!(said.contains("exec: not run: ") && said.contains("is writable by others"), "{said}");
    assert_eq!(waiting(&node), "1");
}

#[test]
fn one_channel_that_is_silent_leaves_the_other_its_time() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let program = site_program(folder.path(), "#!/bin/sh\ncat >/dev/null\n");
    let hook = WebHook::new();
    let node = node(&format!("{}notify: {{ exec: [{}] }}\n", hook.key(), program.display()));
    hook.answers([Answer::Never]);
    letter(&node, "slack finding 1 alert", "text");
    letter(&node, "exec finding 1 alert", "{}");
    let said = run(&node).err;
    assert!(
        said.contains("slack: no answer in time") && said.contains("`exec finding 1 alert` was taken"),
        "{said}"
    );
}
