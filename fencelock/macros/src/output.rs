//! The return type. What is certainly not a `Result` is refused here; about an alias the compiler
//! decides, by the traits of `fencelock::__locked`.

use syn::{
    Error, GenericArgument, Path, PathArguments, Result, ReturnType, Signature, Type,
    TypeParamBound, parse_quote,
};

/// The same text as in `fencelock::__locked`.
const EXPECTED: &str =
    "expected a function that returns a Result<_, E> where E: From<fencelock::Error>";
const EXPECTED_OF_TRY: &str = "expected a function that returns a Result<Option<T>, E> where E: \
                               From<fencelock::Error>: with `try`, None says that the lock is not free";

/// Types that programs return, and do not give to other types as a name.
const OTHERS: [&str; 28] = [
    "bool", "char", "str", "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64",
    "i128", "isize", "f32", "f64", "String", "Option", "Vec", "Box", "Rc", "Arc", "HashMap",
    "HashSet", "BTreeMap", "BTreeSet", "Duration",
];

/// The function's return type, which may be a `Result`.
pub(crate) fn result(signature: &Signature, tries: bool) -> Result<&Type> {
    let expected = if tries { EXPECTED_OF_TRY } else { EXPECTED };
    match &signature.output {
        ReturnType::Default => Err(Error::new_spanned(&signature.ident, expected)),
        ReturnType::Type(_, output) if is_other(output) => {
            Err(Error::new_spanned(output, expected))
        }
        ReturnType::Type(_, output) => Ok(output),
    }
}

/// Whether the function returns a pinned future.
pub(crate) fn is_pin(signature: &Signature) -> bool {
    let ReturnType::Type(_, output) = &signature.output else { return false };
    let Type::Path(path) = &**output else { return false };
    path.path.segments.last().is_some_and(|last| last.ident == "Pin")
}

/// Whether `output` is certainly not a `Result`.
fn is_other(output: &Type) -> bool {
    match output {
        Type::Group(group) => is_other(&group.elem),
        Type::Paren(paren) => is_other(&paren.elem),
        Type::Path(path) => path.qself.is_none() && is_path_of_other(&path.path),
        Type::Array(_)
        | Type::FnPtr(_)
        | Type::Never(_)
        | Type::Ptr(_)
        | Type::Reference(_)
        | Type::Slice(_)
        | Type::TraitObject(_)
        | Type::Tuple(_) => true,
        _ => false,
    }
}

fn is_path_of_other(path: &Path) -> bool {
    let (Some(first), Some(last)) = (path.segments.first(), path.segments.last()) else {
        return false;
    };
    let is_standard =
        path.segments.len() == 1 || ["alloc", "core", "std"].iter().any(|it| first.ident == it);
    is_standard && OTHERS.iter().any(|it| last.ident == it)
}

/// `output` as the return type of a closure, which cannot have `impl Trait`.
pub(crate) fn of_closure(mut output: Type) -> Type {
    infer_opaque_types(&mut output);
    output
}

fn infer_opaque_types(output: &mut Type) {
    match output {
        Type::ImplTrait(_) => *output = parse_quote!(_),
        Type::Array(array) => infer_opaque_types(&mut array.elem),
        Type::Group(group) => infer_opaque_types(&mut group.elem),
        Type::Paren(paren) => infer_opaque_types(&mut paren.elem),
        Type::Path(path) => infer_in_path(&mut path.path),
        Type::Ptr(pointer) => infer_opaque_types(&mut pointer.elem),
        Type::Reference(reference) => infer_opaque_types(&mut reference.elem),
        Type::Slice(slice) => infer_opaque_types(&mut slice.elem),
        Type::TraitObject(object) => {
            for bound in &mut object.bounds {
                if let TypeParamBound::Trait(bound) = bound {
                    infer_in_path(&mut bound.path);
                }
            }
        }
        Type::Tuple(tuple) => tuple.elems.iter_mut().for_each(infer_opaque_types),
        _ => {}
    }
}

fn infer_in_path(path: &mut Path) {
    for segment in &mut path.segments {
        let PathArguments::AngleBracketed(arguments) = &mut segment.arguments else { continue };
        for argument in &mut arguments.args {
            match argument {
                GenericArgument::Type(argument) => infer_opaque_types(argument),
                GenericArgument::AssocType(argument) => infer_opaque_types(&mut argument.ty),
                _ => {}
            }
        }
    }
}
