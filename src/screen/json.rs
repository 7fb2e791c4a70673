//! JSON as a terminal may show it.

use serde_json::Value;

/// JSON text of printable ASCII: user texts hold control and bidirectional characters, which a terminal obeys, and
/// every JSON reader takes `\u202e` for the character itself.
pub fn json_text(value: &Value) -> String {
    ascii(&format!("{value:#}\n"))
}

/// JSON that was already written, in printable ASCII.
pub fn ascii(json: &str) -> String {
    let mut out = String::new();
    for c in json.chars() {
        if c == '\n' || (' '..='~').contains(&c) {
            out.push(c);
        } else {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                out += &format!("\\u{unit:04x}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn no_character_of_a_users_reaches_the_terminal_raw_and_none_is_lost() {
        let value = json!({ "user": "a\u{7f}\u{85}\u{9b}2J\u{202e}\u{2066}\u{feff}\u{1b}\n\u{e0041}\u{fc}\"\\", "n": [1, null] });
        let said = json_text(&value);
        assert!(said.bytes().all(|b| b == b'\n' || (b' '..=b'~').contains(&b)), "{said}");
        assert!(said.contains("\\u009b2J\\u202e"), "{said}");
        assert_eq!(serde_json::from_str::<Value>(&said).unwrap(), value);
    }
}
