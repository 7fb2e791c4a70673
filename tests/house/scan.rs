//! Reads Rust source far enough to know which paths it names: comments, strings and test modules aside,
//! nested `use` groups and `super::` resolved. It does not expand macros and knows no types.

/// A word or a sign of the source, with its line (from 1).
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    pub text: String,
    pub line: usize,
}

/// A path as it stands in the source, in full: `use a::{b, c::d}` gives `a::b` and `a::c::d`.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    pub parts: Vec<String>,
    pub line: usize,
}

/// A function with a body: its name, its first line and how many lines it takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    pub name: String,
    pub line: usize,
    pub lines: usize,
}

/// The source's words and signs. Comments vanish; a string or character literal becomes one `"` token.
pub fn tokens(source: &str) -> Vec<Token> {
    let chars: Vec<char> = source.chars().collect();
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < chars.len() {
        let start = at;
        let c = chars[at];
        let text = if c.is_whitespace() {
            at += 1;
            None
        } else if let Some(end) = comment_end(&chars, at) {
            at = end;
            None
        } else if let Some(end) = literal_end(&chars, at) {
            at = end;
            Some("\"".to_string())
        } else if is_word(c) {
            while at < chars.len() && is_word(chars[at]) {
                at += 1;
            }
            Some(chars[start..at].iter().collect())
        } else if c == ':' && chars.get(at + 1) == Some(&':') {
            at += 2;
            Some("::".to_string())
        } else {
            at += 1;
            Some(c.to_string())
        };
        found.extend(text.map(|text| Token { text, line }));
        line += chars[start..at].iter().filter(|c| **c == '\n').count();
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn starts(chars: &[char], at: usize, what: &str) -> bool {
    what.chars().enumerate().all(|(i, c)| chars.get(at + i) == Some(&c))
}

fn comment_end(chars: &[char], start: usize) -> Option<usize> {
    if starts(chars, start, "//") {
        return Some((start..chars.len()).find(|at| chars[*at] == '\n').unwrap_or(chars.len()));
    }
    if !starts(chars, start, "/*") {
        return None;
    }
    let (mut at, mut depth) = (start + 2, 1);
    while at < chars.len() && depth > 0 {
        if starts(chars, at, "/*") {
            depth += 1;
            at += 2;
        } else if starts(chars, at, "*/") {
            depth -= 1;
            at += 2;
        } else {
            at += 1;
        }
    }
    Some(at)
}

/// The end of a string or character literal that begins here, in any of its forms; a lifetime is none.
fn literal_end(chars: &[char], start: usize) -> Option<usize> {
    let mut at = start;
    while at < chars.len() && matches!(chars[at], 'b' | 'c' | 'r') && at - start < 2 {
        at += 1;
    }
    let prefix: String = chars[start..at].iter().collect();
    let hashes = (at..chars.len()).take_while(|i| chars[*i] == '#').count();
    if prefix.ends_with('r') && chars.get(at + hashes) == Some(&'"') {
        let close: String = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
        let body = at + hashes + 1;
        let end = (body..chars.len()).find(|i| starts(chars, *i, &close));
        return Some(end.map_or(chars.len(), |end| end + close.len()));
    }
    let quote = *chars.get(at)?;
    let is_char = quote == '\'' && (chars.get(at + 1) == Some(&'\\') || chars.get(at + 2) == Some(&'\''));
    if (quote != '"' || prefix.ends_with('r')) && !is_char {
        return None;
    }
    at += 1;
    while at < chars.len() && chars[at] != quote {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    Some((at + 1).min(chars.len()))
}

/// The tokens without the items under `#[cfg(test)]`, and the names of modules declared so (`#[cfg(test)] mod x;`).
pub fn without_tests(tokens: &[Token]) -> (Vec<Token>, Vec<String>) {
    let (mut kept, mut test_modules) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < tokens.len() {
        if !matches(tokens, at, &["#", "[", "cfg", "(", "test", ")", "]"]) {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        at += 7;
        while matches(tokens, at, &["#", "["]) {
            at = closing(tokens, at + 1) + 1;
        }
        let item = at;
        while at < tokens.len() && !matches!(tokens[at].text.as_str(), ";" | "{") {
            at += 1;
        }
        let declares = (item..at).find(|i| tokens[*i].text == "mod").filter(|_| matches(tokens, at, &[";"]));
        test_modules.extend(declares.and_then(|i| tokens.get(i + 1)).map(|name| name.text.clone()));
        at = if matches(tokens, at, &["{"]) { closing(tokens, at) + 1 } else { at + 1 };
    }
    (kept, test_modules)
}

fn matches(tokens: &[Token], at: usize, want: &[&str]) -> bool {
    want.iter().enumerate().all(|(i, text)| tokens.get(at + i).is_some_and(|t| t.text == *text))
}

/// The index of the bracket that closes the one at `open`; the last index where none does.
fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len().saturating_sub(1)
}

/// Every path of two parts or more, groups multiplied out, `as` names and generics left out.
pub fn paths(tokens: &[Token]) -> Vec<Path> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if is_name(&tokens[at].text) && matches(tokens, at + 1, &["::"]) {
            at = follow(tokens, at, &[], &mut found);
        } else {
            let whole = tokens[at].text == "crate" && matches(tokens, at + 1, &["as"]);
            if whole {
                found.push(Path { parts: vec!["crate".to_string(), "*".to_string()], line: tokens[at].line });
            }
            at += 1;
        }
    }
    found
}

fn is_name(text: &str) -> bool {
    text.chars().next().is_some_and(|c| c.is_alphabetic() || c == '_')
}

/// Follows one path from its first word; returns where the reading goes on.
fn follow(tokens: &[Token], start: usize, before: &[String], found: &mut Vec<Path>) -> usize {
    let mut parts = before.to_vec();
    let line = tokens[start].line;
    let mut at = start;
    loop {
        parts.push(tokens[at].text.clone());
        at += 1;
        let Some(next) = tokens.get(at + 1).filter(|_| matches(tokens, at, &["::"])) else {
            break;
        };
        if next.text == "{" {
            return group(tokens, at + 1, &parts, found);
        }
        at += 1;
        if next.text == "*" {
            parts.push("*".to_string());
            at += 1;
            break;
        }
        if !is_name(&next.text) {
            break;
        }
    }
    found.push(Path { parts, line });
    at
}

fn group(tokens: &[Token], open: usize, before: &[String], found: &mut Vec<Path>) -> usize {
    let end = closing(tokens, open);
    let mut at = open + 1;
    while at < end {
        match tokens[at].text.as_str() {
            "self" => {
                found.push(Path { parts: before.to_vec(), line: tokens[at].line });
                at += 1;
            }
            "*" => {
                let parts = before.iter().cloned().chain(["*".to_string()]).collect();
                found.push(Path { parts, line: tokens[at].line });
                at += 1;
            }
            "as" => at += 2,
            text if is_name(text) => at = follow(tokens, at, before, found),
            _ => at += 1,
        }
    }
    end + 1
}

/// `crate::a::b` of a path, where it is one of this crate's: `crate`, the crate's own name and `super` are
/// resolved from `module` (the file's place: `["gpu", "worker"]`). `None` for paths of other crates.
pub fn within_crate(path: &Path, module: &[String], crate_name: &str) -> Option<Vec<String>> {
    let first = path.parts.first()?;
    if first == "crate" || first == crate_name {
        return Some(path.parts[1..].to_vec());
    }
    let ups = path.parts.iter().take_while(|part| *part == "super").count();
    if ups == 0 {
        return None;
    }
    let base = &module[..module.len().saturating_sub(ups)];
    Some(base.iter().chain(&path.parts[ups..]).cloned().collect())
}

/// Every function that has a body.
pub fn functions(tokens: &[Token]) -> Vec<Function> {
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        let Some(name) = tokens.get(at + 1).filter(|next| tokens[at].text == "fn" && is_name(&next.text))
        else {
            continue;
        };
        let mut open = at + 2;
        while open < tokens.len() && !matches!(tokens[open].text.as_str(), "{" | ";") {
            open = if matches!(tokens[open].text.as_str(), "(" | "[") { closing(tokens, open) } else { open }
                + 1;
        }
        if matches(tokens, open, &["{"]) {
            let line = tokens[at].line;
            let lines = tokens[closing(tokens, open)].line - line + 1;
            found.push(Function { name: name.text.clone(), line, lines });
        }
    }
    found
}
