//! The C functions of `include/ea_ext.h`. Everything that crosses the border is here: pointers are
//! checked and turned into slices, panics are caught, text is handed out and taken back.

mod guard;
mod json;
mod messages;
mod python;
mod template;

use std::ffi::{c_char, c_int, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

use template::{Failure, Inputs, Template};

const OK: c_int = 0;
const INTERNAL: c_int = 6;

#[repr(C)]
pub struct Text {
    data: *mut c_char,
    n: usize,
}

type EmitFn = unsafe extern "C" fn(*mut c_void, *const c_char, usize);
type ProtectFn = unsafe extern "C" fn(*mut c_void, *const c_char, usize, EmitFn, *mut c_void);

#[repr(C)]
pub struct Render {
    messages: *const c_char,
    n_messages: usize,
    tools: *const c_char,
    n_tools: usize,
    variables: *const c_char,
    n_variables: usize,
    bos: *const c_char,
    eos: *const c_char,
    add_generation_prompt: bool,
    adapt: bool,
    now: i64,
    protect: Option<ProtectFn>,
    protect_user: *mut c_void,
}

/// A borrowed slice of C memory; `None` for NULL.
unsafe fn bytes<'a>(data: *const c_char, n: usize) -> Option<&'a [u8]> {
    (!data.is_null()).then(|| std::slice::from_raw_parts(data.cast(), n))
}

unsafe fn string(data: *const c_char) -> String {
    if data.is_null() {
        return String::new();
    }
    std::ffi::CStr::from_ptr(data)
        .to_string_lossy()
        .into_owned()
}

/// Hand text over to C: n bytes and a NUL in one boxed slice of n + 1.
unsafe fn give(out: *mut Text, text: String) {
    if out.is_null() {
        return;
    }
    let n = text.len();
    let mut data = text.into_bytes();
    data.push(0);
    let boxed = Box::into_raw(data.into_boxed_slice());
    *out = Text {
        data: boxed.cast(),
        n,
    };
}

/// Run `f`, turning a panic into INTERNAL. The default hook would print to standard error.
fn guarded(out: *mut Text, f: impl FnOnce() -> c_int) -> c_int {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| {
        let _ = catch_unwind(|| unsafe { give(out, "panic in the template library".into()) });
        INTERNAL
    })
}

unsafe fn fail(out: *mut Text, failure: Failure) -> c_int {
    give(out, failure.reason.replace(['\n', '\r'], " "));
    failure.code
}

/// # Safety
/// `text` is NULL or points to a Text that this library filled or that is zero.
#[no_mangle]
pub unsafe extern "C" fn ea_ext_text_free(text: *mut Text) {
    if text.is_null() || (*text).data.is_null() {
        return;
    }
    let slice = std::ptr::slice_from_raw_parts_mut((*text).data.cast::<u8>(), (*text).n + 1);
    drop(Box::from_raw(slice));
    *text = Text {
        data: std::ptr::null_mut(),
        n: 0,
    };
}

/// # Safety
/// As the header says: `source` has n bytes; `out` and `reason` may be written.
#[no_mangle]
pub unsafe extern "C" fn ea_ext_template_create(
    source: *const c_char,
    n: usize,
    out: *mut *mut Template,
    reason: *mut Text,
) -> c_int {
    guarded(reason, || {
        let source = bytes(source, n).unwrap_or_default();
        match Template::compile(source) {
            Ok(template) => {
                *out = Box::into_raw(Box::new(template));
                OK
            }
            Err(failure) => fail(reason, failure),
        }
    })
}

/// # Safety
/// `t` is NULL or came from ea_ext_template_create, and is not used any more.
#[no_mangle]
pub unsafe extern "C" fn ea_ext_template_destroy(t: *mut Template) {
    guarded(std::ptr::null_mut(), || {
        if !t.is_null() {
            drop(Box::from_raw(t));
        }
        OK
    });
}

unsafe extern "C" fn emit_to_vec(sink: *mut c_void, data: *const c_char, n: usize) {
    if n > 0 {
        (*sink.cast::<Vec<u8>>()).extend_from_slice(std::slice::from_raw_parts(data.cast(), n));
    }
}

/// The caller's protector as a Rust function; called on the caller's own thread.
struct Protector(ProtectFn, *mut c_void);

impl Protector {
    fn apply(&self, text: &str) -> String {
        let mut out: Vec<u8> = Vec::with_capacity(text.len() + 16);
        let sink: *mut Vec<u8> = &mut out;
        unsafe {
            (self.0)(
                self.1,
                text.as_ptr().cast(),
                text.len(),
                emit_to_vec,
                sink.cast(),
            )
        };
        String::from_utf8(out)
            .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
    }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn ea_ext_template_render(
    t: *const Template,
    params: *const Render,
    out: *mut Text,
) -> c_int {
    guarded(out, || {
        let p = &*params;
        let protector = p.protect.map(|f| Protector(f, p.protect_user));
        let apply = |text: &str| match &protector {
            Some(protector) => protector.apply(text),
            None => text.to_owned(),
        };
        let inputs = Inputs {
            messages: bytes(p.messages, p.n_messages).unwrap_or(b"[]"),
            tools: bytes(p.tools, p.n_tools),
            variables: bytes(p.variables, p.n_variables),
            bos: string(p.bos),
            eos: string(p.eos),
            add_generation_prompt: p.add_generation_prompt,
            adapt: p.adapt,
            now: p.now,
            protect: &apply,
        };
        match (*t).render(&inputs) {
            Ok(text) => {
                give(out, text);
                OK
            }
            Err(failure) => fail(out, failure),
        }
    })
}
