//! The modules of the operator's crates have no dependency cycle, neither among siblings nor between a module and its submodules.
//!
//! The source is read as tokens, so that paths in macros count as well. Code that is only for tests does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

#[test]
fn modules_have_no_circle() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("src");
    let circles = [source.join("crd"), source].map(|source| circles(&Modules::of(&source))).concat();
    assert!(circles.is_empty(), "{}", circles.join("\n"));
}

/// The rooms of a ClientApp, in the order of its stages: each uses only those before it.
#[test]
fn a_stage_uses_no_later_one() {
    const ROOMS: [&str; 13] = [
        "error",
        "helm_runs",
        "hold",
        "spec",
        "observed",
        "decide",
        "context",
        "observe",
        "status",
        "act",
        "teardown",
        "start",
        "mod",
    ];
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("src");
    let place =
        |room: &str| ROOMS.iter().position(|known| *known == room).unwrap_or_else(|| panic!("{room} has no place"));
    for ((user, used), path) in Modules::of(&source).uses("clientapp") {
        assert!(place(&used) < place(&user), "{user} uses {used}: {path}");
    }
}

/// Returns a text for each cycle.
fn circles(modules: &Modules) -> Vec<String> {
    let mut wrong = Vec::new();
    let levels: BTreeSet<_> = modules.names.iter().filter_map(|name| Some(name.split_last()?.1.join("::"))).collect();
    for level in levels.iter().map(|level| if level.is_empty() { "crate" } else { level }) {
        let mut uses = modules.uses(level);
        while let Some(circle) = circle(&uses) {
            let places: Vec<_> =
                circle.iter().map(|edge| format!("  {} -> {}, {}", edge.0, edge.1, uses[edge])).collect();
            wrong.push(format!("a cycle in {level}:\n{}", places.join("\n")));
            // One edge is enough to break one cycle; there may be others.
            uses.remove(circle.last().expect("a cycle has an edge"));
        }
    }
    wrong
}

/// Which module uses which, and one place where it does.
type Uses = BTreeMap<(String, String), String>;

/// The edges of one cycle, if there is one.
fn circle(uses: &Uses) -> Option<Vec<(String, String)>> {
    uses.keys().find_map(|edge| {
        let mut circle = path(uses, &edge.1, &edge.0)?;
        circle.push(edge.clone());
        Some(circle)
    })
}

/// The edges of a shortest path.
fn path(uses: &Uses, from: &str, to: &str) -> Option<Vec<(String, String)>> {
    let mut reached = BTreeMap::from([(from.to_owned(), Vec::new())]);
    let mut rim = vec![from.to_owned()];
    while !rim.is_empty() {
        if let Some(found) = reached.get(to) {
            return Some(found.clone());
        }
        let mut next = Vec::new();
        for edge in uses.keys().filter(|edge| rim.contains(&edge.0)) {
            if !reached.contains_key(&edge.1) {
                let path = reached[&edge.0].iter().cloned().chain([edge.clone()]).collect();
                reached.insert(edge.1.clone(), path);
                next.push(edge.1.clone());
            }
        }
        rim = next;
    }
    None
}

/// All modules of a crate and the paths in them.
#[derive(Default)]
struct Modules {
    /// Their paths without `crate`; the root's is empty.
    names: BTreeSet<Vec<String>>,
    /// The module that uses a path, the path as written, and the file.
    paths: Vec<(Vec<String>, Vec<String>, String)>,
    /// By module and name, the path of an import: a name counts as used from its origin.
    imports: BTreeMap<(Vec<String>, String), Vec<String>>,
}

impl Modules {
    fn of(source: &Path) -> Modules {
        let mut modules = Modules::default();
        modules.file(&source.join("lib.rs"), source, Vec::new());
        modules
    }

    /// Reads a file and its submodules, which are in a directory.
    fn file(&mut self, file: &Path, directory: &Path, module: Vec<String>) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let tokens = text.parse().unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.module(tokens, file, directory, module);
    }

    fn module(&mut self, tokens: TokenStream, file: &Path, directory: &Path, module: Vec<String>) {
        self.names.insert(module.clone());
        self.tokens(&tokens.into_iter().collect::<Vec<_>>(), file, directory, &module);
    }

    fn tokens(&mut self, tokens: &[TokenTree], file: &Path, directory: &Path, module: &[String]) {
        let mut at = 0;
        while at < tokens.len() {
            let rest = &tokens[at..];
            match rest {
                // Skips the item that the attribute applies to, up to its body or its semicolon.
                [TokenTree::Punct(hash), TokenTree::Group(attribute), ..]
                    if hash.as_char() == '#' && attribute.stream().to_string().replace(' ', "") == "cfg(test)" =>
                {
                    let ends = |token: &TokenTree| match token {
                        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                        TokenTree::Punct(punct) => punct.as_char() == ';',
                        _ => false,
                    };
                    at += rest.iter().position(ends).expect("an attribute applies to an item");
                }
                [TokenTree::Ident(keyword), TokenTree::Ident(name), end, ..] if keyword == "mod" => {
                    let inner: Vec<_> = module.iter().cloned().chain([name.to_string()]).collect();
                    let below = directory.join(name.to_string());
                    match end {
                        TokenTree::Group(body) => self.module(body.stream(), file, &below, inner),
                        _ => {
                            let candidates = [below.with_extension("rs"), below.join("mod.rs")];
                            let found = candidates.iter().find(|file| file.exists());
                            self.file(found.unwrap_or_else(|| panic!("no {}", below.display())), &below, inner);
                        }
                    }
                    at += 2;
                }
                // The visibility is not a use.
                [TokenTree::Ident(keyword), TokenTree::Group(_), ..] if keyword == "pub" => at += 1,
                [TokenTree::Ident(_), TokenTree::Punct(colon), ..] if colon.as_char() == ':' => {
                    let first = self.paths.len();
                    let imports = at > 0 && matches!(&tokens[at - 1], TokenTree::Ident(word) if word == "use");
                    at += self.path(rest, Vec::new(), file, module);
                    for (_, path, _) in self.paths[first..].iter().filter(|_| imports) {
                        let name = path.last().expect("a path has a name").clone();
                        self.imports.insert((module.to_owned(), name), path.clone());
                    }
                    continue;
                }
                [TokenTree::Group(group), ..] => {
                    self.tokens(&group.stream().into_iter().collect::<Vec<_>>(), file, directory, module);
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Records the path, or the paths, that begin here, and returns the number of their tokens.
    fn path(&mut self, tokens: &[TokenTree], mut path: Vec<String>, file: &Path, module: &[String]) -> usize {
        let is_colon = |token: Option<&TokenTree>| matches!(token, Some(TokenTree::Punct(p)) if p.as_char() == ':');
        let mut at = 0;
        loop {
            match tokens.get(at) {
                Some(TokenTree::Ident(name)) => path.push(name.to_string()),
                Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                    let inner: Vec<_> = group.stream().into_iter().collect();
                    let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(p) if p.as_char() == ',');
                    for part in inner.split(is_comma).filter(|part| !part.is_empty()) {
                        self.path(part, path.clone(), file, module);
                    }
                    return at + 1;
                }
                // `::<`, `::*`
                _ => break,
            }
            at += 1;
            if !(is_colon(tokens.get(at)) && is_colon(tokens.get(at + 1))) {
                break;
            }
            at += 2;
        }
        self.paths.push((module.to_owned(), path, file.display().to_string()));
        at.max(1)
    }

    /// The module that contains a path's target, or is the target; `None` outside the crate.
    fn target(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let mut absolute = match path.first()?.as_str() {
            "crate" => Vec::new(),
            "self" | "super" => module.to_owned(),
            // A submodule of this one, or else another crate, a type, or a variable.
            name => {
                let within: Vec<_> = module.iter().cloned().chain([name.to_owned()]).collect();
                self.names.contains(&within).then_some(module.to_owned())?
            }
        };
        for name in path {
            match name.as_str() {
                "crate" | "self" => {}
                "super" => _ = absolute.pop(),
                name => {
                    let within: Vec<_> = absolute.iter().cloned().chain([name.to_owned()]).collect();
                    if !self.names.contains(&within) {
                        let import = (absolute, name.to_owned());
                        return match self.imports.get(&import).filter(|_| import.0 != module) {
                            Some(path) => self.target(&import.0, path).or(Some(import.0)),
                            None => Some(import.0),
                        };
                    }
                    absolute = within;
                }
            }
        }
        Some(absolute)
    }

    /// The uses among the children of one module; the module itself is `mod` there.
    fn uses(&self, level: &str) -> Uses {
        let level: Vec<_> = level.split("::").filter(|name| *name != "crate").map(str::to_owned).collect();
        let within = |module: &[String]| {
            let rest = module.strip_prefix(level.as_slice())?;
            Some(rest.first().cloned().unwrap_or_else(|| "mod".to_owned()))
        };
        let mut uses = Uses::new();
        for (module, path, file) in &self.paths {
            let target = self.target(module, path);
            let (Some(user), Some(used)) = (within(module), target.as_deref().and_then(within)) else { continue };
            if user != used {
                let file = PathBuf::from(file).file_name().expect("it is a file").to_string_lossy().into_owned();
                uses.entry((user, used)).or_insert_with(|| format!("{} in {file}", path.join("::")));
            }
        }
        uses
    }
}

#[test]
fn paths_are_found_wherever_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| {
        let file = directory.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    write(
        "lib.rs",
        "pub mod a;\nmod b;\nmod d;\nmod c { pub(in crate::a) struct S; fn f() { let b: Vec<crate::b::T> = g(); } }",
    );
    write("a/mod.rs", "mod one;\nmod two;\nuse self::two::{self, X,};\n#[cfg(test)]\nmod tests;\nstruct S;");
    write("a/one.rs", "use super::{S, X};\n#[cfg(test)]\nmod tests { use crate::b::T; }\nconst Y: X = X::new();");
    write("a/two.rs", "fn f() { json!({\"x\": super::super::c::S}); /* crate::b */ \"crate::b\" }");
    write("b.rs", "use crate::{a::{one::*, two}, fmt};");
    write("d.rs", "mod one;\nfn f() { one::g() }\nstruct S;");
    write("d/one.rs", "use super::S;");
    let modules = Modules::of(directory.path());
    let uses = |level: &str| -> Vec<_> { modules.uses(level).into_keys().collect() };
    let edges = |edges: &[(&str, &str)]| -> Vec<_> {
        edges.iter().map(|(user, used)| ((*user).to_owned(), (*used).to_owned())).collect()
    };
    assert_eq!(uses("crate"), edges(&[("a", "c"), ("b", "a"), ("b", "mod"), ("c", "b")]));
    assert_eq!(uses("a"), edges(&[("mod", "two"), ("one", "mod"), ("one", "two")]));
    assert_eq!(circle(&modules.uses("a")), None);
    assert_eq!(circle(&modules.uses("d")).map(|circle| circle.len()), Some(2));
    assert_eq!(circle(&modules.uses("crate")).map(|circle| circle.len()), Some(3));
}
