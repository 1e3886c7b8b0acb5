//! Circles of files: which file of a crate uses which other, and where that forms a circle.
//!
//! A file uses another if it names something that is defined there: by a private `use`, by a path in its code, or
//! through a name that one of its `use`s imports. Paths are followed through re-exports to the file that defines the
//! name; a re-export alone does not count. Calls of methods and fields are not seen: behaviour may be added to a type
//! from above (`impl Inode` in `data`); its definition may not refer to that. Tests (`#[cfg(test)]`) do not count,
//! inline modules belong to their file. Uses of the parent modules do not count either: a module is its children's
//! frame, and they may use it.
//!
//! Files that use each other, directly or by way of others, are a circle and refused.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::visit::Visit;

use super::Report;

/// Path of a module from the root of its crate: `["data", "map"]`; the root's is empty.
type Module = Vec<String>;

/// What a name in a module refers to, if it does not name something defined there.
enum Name {
    /// Brought in by a `use`, re-exported or not.
    Path(Vec<String>),
    /// Defined in the file itself, inline modules included.
    Here,
}

#[derive(Default)]
struct File {
    path: PathBuf,
    names: BTreeMap<String, Name>,
    /// `use x::*`.
    globs: Vec<Vec<String>>,
    /// Paths that its code names, as they are written.
    used: BTreeSet<Vec<String>>,
}

/// Reports circles.
pub(super) fn check(files: &BTreeMap<PathBuf, String>, report: &mut Report) -> Result<()> {
    for root in files.keys().filter(|path| is_crate_root(path)) {
        let krate =
            root.parent().and_then(Path::parent).and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        let src = root.parent().context("a root without a directory")?;
        for circle in circles(&uses(files, root)?) {
            let names: Vec<String> =
                circle.iter().map(|path| path.strip_prefix(src).unwrap_or(path).display().to_string()).collect();
            report.error(format!("{krate}: these files use each other in a circle: {}", names.join(", ")));
        }
    }
    Ok(())
}

/// Prints the circles of a crate, or of all, as graphs for `dot`: each file, and what it uses within its circle.
pub(super) fn draw(files: &BTreeMap<PathBuf, String>, krate: Option<&str>) -> Result<()> {
    let of = |root: &Path| {
        krate.is_none_or(|name| root.parent().and_then(Path::parent).is_some_and(|dir| dir.ends_with(name)))
    };
    for root in files.keys().filter(|path| is_crate_root(path) && of(path)) {
        let src = root.parent().context("a root without a directory")?;
        let name = |path: &Path| format!("{:?}", path.strip_prefix(src).unwrap_or(path).with_extension(""));
        let uses = uses(files, root)?;
        for circle in circles(&uses) {
            println!("digraph {:?} {{", src.display().to_string());
            for path in &circle {
                for to in uses[path].iter().filter(|to| circle.contains(to)) {
                    println!("  {} -> {};", name(path), name(to));
                }
            }
            println!("}}");
        }
    }
    Ok(())
}

fn is_crate_root(path: &Path) -> bool {
    path.ends_with("src/lib.rs") || path.ends_with("src/main.rs")
}

/// Which files of a crate each of its files uses.
fn uses(files: &BTreeMap<PathBuf, String>, root: &Path) -> Result<BTreeMap<PathBuf, BTreeSet<PathBuf>>> {
    let mut modules: BTreeMap<Module, File> = BTreeMap::new();
    let mut next = vec![(Module::new(), root.to_owned())];
    while let Some((module, path)) = next.pop() {
        let parsed = syn::parse_file(&files[&path]).with_context(|| format!("{} is no Rust", path.display()))?;
        let mut reader =
            Reader { file: File { path: path.clone(), ..File::default() }, children: Vec::new(), depth: 0 };
        reader.visit_file(&parsed);
        let dir = if path == root || path.ends_with("mod.rs") {
            path.parent().unwrap_or(Path::new("")).to_owned()
        } else {
            path.with_extension("")
        };
        for name in reader.children {
            let candidates = [dir.join(format!("{name}.rs")), dir.join(&name).join("mod.rs")];
            let child = candidates.into_iter().find(|path| files.contains_key(path));
            next.push((
                join(&module, &name),
                child.with_context(|| format!("{}: no file for {name}", path.display()))?,
            ));
        }
        modules.insert(module, reader.file);
    }
    let mut out = BTreeMap::new();
    for (module, file) in &modules {
        let targets = file.used.iter().filter_map(|path| resolve(&modules, module, path, 0));
        let parents: BTreeSet<&PathBuf> =
            (0..module.len()).filter_map(|n| Some(&modules.get(&module[..n])?.path)).collect();
        let others = targets.filter(|path| *path != file.path && !parents.contains(path));
        out.insert(file.path.clone(), others.collect());
    }
    Ok(out)
}

fn join(module: &Module, name: &str) -> Module {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

/// The file that defines the target of a path, as seen from a module; `None` if it is not of this crate.
fn resolve(modules: &BTreeMap<Module, File>, from: &Module, path: &[String], depth: usize) -> Option<PathBuf> {
    // Re-exports of re-exports end soon; globs may go round.
    const DEPTH_MAX: usize = 8;
    if depth > DEPTH_MAX {
        return None;
    }
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => descend(modules, Module::new(), rest, depth),
        "self" => descend(modules, from.clone(), rest, depth),
        "super" => descend(modules, from.split_last()?.1.to_vec(), rest, depth),
        _ => {
            let file = &modules[from];
            let child = join(from, first);
            if modules.contains_key(&child) {
                return descend(modules, child, rest, depth);
            }
            match file.names.get(first) {
                Some(Name::Here) => Some(file.path.clone()),
                // `use foo::foo` of another crate of that name ends here.
                Some(Name::Path(to)) if to.first() == Some(first) && to.len() == 1 => None,
                Some(Name::Path(to)) => {
                    let whole: Vec<String> = to.iter().chain(rest).cloned().collect();
                    resolve(modules, from, &whole, depth + 1)
                }
                None => file.globs.iter().find_map(|glob| {
                    let whole: Vec<String> = glob.iter().cloned().chain([first.clone()]).collect();
                    resolve(modules, from, &whole, depth + 1).filter(|_| glob.first().is_some_and(|g| g != first))
                }),
            }
        }
    }
}

/// The same from a module of this crate on: the rest of the path names a child, a re-export, or something defined in
/// its file.
fn descend(modules: &BTreeMap<Module, File>, module: Module, rest: &[String], depth: usize) -> Option<PathBuf> {
    let file = modules.get(&module)?;
    let Some((name, after)) = rest.split_first() else { return Some(file.path.clone()) };
    if name == "super" {
        return descend(modules, module.split_last()?.1.to_vec(), after, depth);
    }
    let child = join(&module, name);
    if modules.contains_key(&child) {
        return descend(modules, child, after, depth);
    }
    match file.names.get(name) {
        Some(Name::Path(to)) => {
            let whole: Vec<String> = to.iter().chain(after).cloned().collect();
            resolve(modules, &module, &whole, depth + 1)
        }
        Some(Name::Here) => Some(file.path.clone()),
        None => {
            let through = file.globs.iter().find_map(|glob| {
                let whole: Vec<String> = glob.iter().cloned().chain(rest.iter().cloned()).collect();
                resolve(modules, &module, &whole, depth + 1)
            });
            // What a macro defines is not seen by name.
            Some(through.unwrap_or_else(|| file.path.clone()))
        }
    }
}

/// The groups of two or more files that can be reached from each other, each sorted.
fn circles(uses: &BTreeMap<PathBuf, BTreeSet<PathBuf>>) -> Vec<Vec<PathBuf>> {
    let reach = |from: &PathBuf| {
        let mut seen = BTreeSet::new();
        let mut next: Vec<&PathBuf> = uses[from].iter().collect();
        while let Some(path) = next.pop() {
            if seen.insert(path.clone()) {
                next.extend(&uses[path]);
            }
        }
        seen
    };
    let reached: BTreeMap<&PathBuf, BTreeSet<PathBuf>> = uses.keys().map(|path| (path, reach(path))).collect();
    let mut out: Vec<Vec<PathBuf>> = Vec::new();
    for (path, ahead) in &reached {
        if out.iter().any(|circle| circle.contains(path)) {
            continue;
        }
        let circle: Vec<PathBuf> = ahead.iter().filter(|to| reached[to].contains(*path)).cloned().collect();
        if circle.len() > 1 {
            out.push(circle);
        }
    }
    out
}

/// Reads one file: what it defines, imports and names.
struct Reader {
    file: File,
    /// Modules in files of their own.
    children: Vec<String>,
    /// In how many inline modules the reader is.
    depth: usize,
}

impl Reader {
    fn define(&mut self, name: &syn::Ident) {
        if self.depth == 0 {
            self.file.names.insert(name.to_string(), Name::Here);
        }
    }

    fn bring_in(&mut self, tree: &syn::UseTree, before: &mut Vec<String>, private: bool) {
        let (path, name) = match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.bring_in(&path.tree, before, private);
                before.pop();
                return;
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.bring_in(tree, before, private);
                }
                return;
            }
            syn::UseTree::Glob(_) => {
                self.file.globs.push(before.clone());
                return;
            }
            syn::UseTree::Name(name) if name.ident == "self" => (before.clone(), before.last().cloned()),
            syn::UseTree::Name(name) => (with(before, &name.ident), Some(name.ident.to_string())),
            syn::UseTree::Rename(name) => (with(before, &name.ident), Some(name.rename.to_string())),
        };
        if private {
            self.file.used.insert(path.clone());
        }
        if let Some(name) = name {
            self.file.names.entry(name).or_insert(Name::Path(path));
        }
    }
}

fn with(before: &[String], ident: &syn::Ident) -> Vec<String> {
    before.iter().cloned().chain([ident.to_string()]).collect()
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| match &a.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string().contains("test"),
        meta => meta.path().is_ident("test"),
    })
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let (attributes, name) = match item {
            syn::Item::Const(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Enum(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Fn(i) => (&i.attrs, Some(&i.sig.ident)),
            syn::Item::Static(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Struct(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Trait(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Type(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Union(i) => (&i.attrs, Some(&i.ident)),
            syn::Item::Macro(i) => (&i.attrs, i.ident.as_ref()),
            syn::Item::Impl(i) => (&i.attrs, None),
            syn::Item::Use(i) => (&i.attrs, None),
            syn::Item::Mod(i) => (&i.attrs, i.content.as_ref().map(|_| &i.ident)),
            _ => return syn::visit::visit_item(self, item),
        };
        if is_test(attributes) {
            return;
        }
        if let Some(name) = name {
            self.define(name);
        }
        match item {
            syn::Item::Use(i) => {
                // Imports of an inline module count as uses, but are not names of the file.
                let private = matches!(i.vis, syn::Visibility::Inherited);
                if self.depth == 0 {
                    self.bring_in(&i.tree, &mut Vec::new(), private);
                }
            }
            syn::Item::Mod(i) if i.content.is_none() => self.children.push(i.ident.to_string()),
            syn::Item::Mod(_) => {
                self.depth += 1;
                syn::visit::visit_item(self, item);
                self.depth -= 1;
            }
            _ => syn::visit::visit_item(self, item),
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.file.used.insert(path.segments.iter().map(|s| s.ident.to_string()).collect());
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            syn::visit::visit_impl_item_fn(self, item);
        }
    }

    /// Arguments of macros are tokens: paths in them begin with a name that was brought in, or with `crate`, `self`, `super`.
    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.visit_path(&item.path);
        let mut words = vec![];
        flatten(item.tokens.clone(), &mut words);
        let mut path: Vec<String> = Vec::new();
        let mut colons = 2;
        for word in words {
            match word {
                Word::Colon => colons += 1,
                Word::Ident(name) => {
                    if colons != 2 && !path.is_empty() {
                        self.file.used.insert(std::mem::take(&mut path));
                    }
                    path.push(name);
                    colons = 0;
                }
                Word::Other => {
                    if !path.is_empty() {
                        self.file.used.insert(std::mem::take(&mut path));
                    }
                    colons = 0;
                }
            }
        }
        if !path.is_empty() {
            self.file.used.insert(path);
        }
    }
}

enum Word {
    Ident(String),
    Colon,
    Other,
}

fn flatten(tokens: proc_macro2::TokenStream, out: &mut Vec<Word>) {
    for token in tokens {
        match token {
            proc_macro2::TokenTree::Ident(ident) => out.push(Word::Ident(ident.to_string())),
            proc_macro2::TokenTree::Punct(p) if p.as_char() == ':' => out.push(Word::Colon),
            proc_macro2::TokenTree::Group(group) => {
                out.push(Word::Other);
                flatten(group.stream(), out);
                out.push(Word::Other);
            }
            _ => out.push(Word::Other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The circles of a crate with these files below `src`.
    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let src = Path::new("crates/some/src");
        let files = files.iter().map(|(name, text)| (src.join(name), (*text).to_owned())).collect();
        let names = |circle: Vec<PathBuf>| {
            circle.iter().map(|path| path.strip_prefix(src).expect("below src").display().to_string()).collect()
        };
        circles(&uses(&files, &src.join("lib.rs")).expect("parses")).into_iter().map(names).collect()
    }

    /// Goal: a circle is found however a file names the other. Method: two files, one of which uses the other by a
    /// `use`, by a path, through a re-export, through a glob, in the arguments of a macro, in an inline module's path,
    /// and through a third file.
    #[test]
    fn every_way_to_name_a_file() {
        let a = "use crate::b::B; pub struct A(B);";
        let ways = [
            "use crate::a::A; pub struct B(A);",
            "use super::a::A as Other; pub struct B(Other);",
            "pub struct B(crate::a::A);",
            "use crate::A; pub struct B(A);",
            "use crate::*; pub struct B(A);",
            "use crate::a; pub struct B(a::A);",
            "pub struct B; fn f() -> String { format!(\"{}\", crate::a::name(3)) }",
            "pub struct B; mod inner { pub fn f() -> crate::a::A { loop {} } }",
            "pub struct B(crate::c::C);",
        ];
        for b in ways {
            let c = "pub use crate::a::name; pub struct C(pub crate::a::A);";
            let lib = "mod a; mod b; mod c; pub use a::A;";
            let mut want = vec!["a.rs", "b.rs"];
            if b.contains("::c::") {
                want.push("c.rs");
            }
            assert_eq!(found(&[("lib.rs", lib), ("a.rs", a), ("b.rs", b), ("c.rs", c)]), [want], "{b}");
        }
    }

    /// Goal: only uses count as uses. Method: tests, re-exports alone, parents, names of other crates, methods.
    #[test]
    fn what_does_not_count() {
        let a = "use crate::b::B; pub struct A(B);";
        let others = [
            "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }",
            "pub struct B; #[cfg(test)] use crate::a::A;",
            "pub struct B; pub use crate::a::A;",
            "use other::a::A; pub struct B(A);",
            "pub struct B; impl B { fn a(&self) { self.a() } }",
        ];
        for b in others {
            assert_eq!(found(&[("lib.rs", "mod a; mod b;"), ("a.rs", a), ("b.rs", b)]), [[""; 0]; 0], "{b}");
        }
        let (parent, child) = ("mod child; use child::C; pub struct P(C);", "use super::P; pub struct C(P);");
        let files =
            [("lib.rs", "mod parent; struct Top(parent::P);"), ("parent.rs", parent), ("parent/child.rs", child)];
        assert_eq!(found(&files), [[""; 0]; 0]);
    }
}
