//! Bounds on a render that the engine's fuel does not see. Some of minijinja's operations are lazy
//! and then do all their work at once (joining long lists, say) without asking for fuel, and no code
//! of ours runs inside. So each render has a thread of its own that owns all its data, and this
//! allocator counts what that thread holds. A thread that goes over its bound cannot be unwound from
//! inside an allocation, so it is put to sleep for good, and its caller told. That costs the bound's
//! memory once: the template is not rendered again.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Control {
    stuck: AtomicBool,
}

thread_local! {
    /// The bound of this thread's live bytes; NULL control: not bounded.
    static CONTROL: Cell<*const Control> = const { Cell::new(ptr::null()) };
    static LEFT: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

impl Counting {
    #[inline]
    fn take(n: usize) {
        let control = CONTROL.with(Cell::get);
        if control.is_null() {
            return;
        }
        let left = LEFT.with(|cell| {
            cell.set(cell.get().saturating_sub_unsigned(n));
            cell.get()
        });
        if left < 0 {
            // Release pairs with the caller's acquire in `run`.
            unsafe { (*control).stuck.store(true, Ordering::Release) };
            loop {
                std::thread::park();
            }
        }
    }

    #[inline]
    fn give(n: usize) {
        LEFT.with(|cell| cell.set(cell.get().saturating_add_unsigned(n)));
    }
}

// Thread-locals here are plain cells without destructors: no allocation, alive until thread exit.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counting::take(layout.size());
        System.alloc(layout)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Counting::take(layout.size());
        System.alloc_zeroed(layout)
    }

    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        Counting::give(layout.size());
        System.dealloc(data, layout)
    }

    unsafe fn realloc(&self, data: *mut u8, layout: Layout, n: usize) -> *mut u8 {
        Counting::take(n);
        Counting::give(layout.size());
        System.realloc(data, layout, n)
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

pub enum Outcome<R> {
    Done(R),
    /// The thread went over its memory or its time and is left behind.
    Stuck,
    /// It panicked, or there is no thread to be had.
    Lost(String),
}

/// Run `f` on a thread of its own, holding at most `memory` bytes more than it started with, for at
/// most `time`. The stack is virtual memory until used; values nest as deep as memory allows, and
/// their destructors need several times their size in stack.
pub fn run<R, F>(memory: usize, time: Duration, f: F) -> Outcome<R>
where
    R: Send + 'static,
    F: FnOnce() -> R + Send + 'static,
{
    let control = Arc::new(Control {
        stuck: AtomicBool::new(false),
    });
    let theirs = control.clone();
    let (send, receive) = channel();
    let stack = (memory.saturating_mul(8)).clamp(64 << 20, 1 << 30);
    let thread = std::thread::Builder::new()
        .stack_size(stack)
        .spawn(move || {
            LEFT.with(|cell| cell.set(isize::try_from(memory).unwrap_or(isize::MAX)));
            CONTROL.with(|cell| cell.set(Arc::as_ptr(&theirs)));
            let result = f();
            CONTROL.with(|cell| cell.set(ptr::null()));
            let _ = send.send(result);
        });
    let thread = match thread {
        Ok(thread) => thread,
        Err(e) => return Outcome::Lost(format!("no thread for a template: {e}")),
    };
    let start = Instant::now();
    loop {
        match receive.recv_timeout(Duration::from_millis(20)) {
            Ok(result) => {
                let _ = thread.join();
                return Outcome::Done(result);
            }
            Err(RecvTimeoutError::Disconnected) => {
                let _ = thread.join();
                return Outcome::Lost("panic in a template".into());
            }
            Err(RecvTimeoutError::Timeout) => {
                if control.stuck.load(Ordering::Acquire) || start.elapsed() > time {
                    return Outcome::Stuck;
                }
            }
        }
    }
}
