//! Puts the scenario files into the binary: `scenarios` and `demo` need nothing beside it.

use std::fmt::Write;
use std::path::Path;

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/scenarios");
    println!("cargo:rerun-if-changed={}", folder.display());
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .expect("fixtures/scenarios")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    let mut code = String::from("/// Every scenario, by name.\npub const ALL: &[Named] = &[\n");
    for name in names {
        let file = folder.join(&name).join("scenario.yaml");
        println!("cargo:rerun-if-changed={}", file.display());
        writeln!(code, "Named {{ name: {name:?}, text: include_str!({file:?}) }},").unwrap();
    }
    code += "];\n";
    let out = std::env::var("OUT_DIR").expect("OUT_DIR");
    std::fs::write(Path::new(&out).join("scenarios.rs"), code).expect("write scenarios.rs");
}
