//! Pointers that come from C, looked at before anything is done with them. All unsafe operations of the crate are here.
//!
//! What cannot be known here (whether memory behind a pointer that is not null is the caller's, and as long as it says) is
//! what the header asks of callers.

use std::ffi::{CStr, c_char};

use crate::error::Failure;

/// A text that ends in a zero byte.
///
/// # Safety
/// If it is not null it ends in a zero byte, and stays as it is during the call.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a [u8], Failure> {
    if pointer.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: not null, and the caller says that it ends and stays.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_bytes())
}

/// Texts, `count` of them.
///
/// # Safety
/// If it is not null it has `count` pointers, each as for [`text`].
pub(crate) unsafe fn texts<'a>(
    pointer: *const *const c_char,
    count: usize,
    name: &str,
) -> Result<Vec<&'a [u8]>, Failure> {
    check(pointer, count, name)?;
    let mut all = Vec::new();
    for at in 0..count {
        // SAFETY: within the `count` pointers, whose bytes were checked not to wrap around.
        let one = unsafe { pointer.add(at) };
        // SAFETY: aligned, and the caller says that a pointer is there.
        let one = unsafe { one.read() };
        // SAFETY: as the caller says.
        all.push(unsafe { text(one, name) }?);
    }
    Ok(all)
}

/// Bytes to read.
///
/// # Safety
/// If it is not null it has `len` bytes, which nobody changes during the call.
pub(crate) unsafe fn bytes<'a>(pointer: *const u8, len: usize, name: &str) -> Result<&'a [u8], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    check(pointer, len, name)?;
    // SAFETY: not null, no longer than memory can be, and the caller says that the bytes are there and stay.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
}

/// Room for `len` bytes. They are only written: C's memory need not have been set before.
///
/// # Safety
/// If it is not null it has `len` bytes, which nobody else looks at during the call.
pub(crate) unsafe fn room<'a>(pointer: *mut u8, len: usize, name: &str) -> Result<&'a mut [u8], Failure> {
    if len == 0 {
        return Ok(&mut []);
    }
    check(pointer, len, name)?;
    // SAFETY: not null, no longer than memory can be, and the caller says that the bytes are its own. What was in them is of no
    // consequence: any value is one of a byte, and the compiler cannot know that C has set none.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, len) })
}

/// Puts a value where C wants it.
///
/// # Safety
/// If it is not null there is room for a `T`, which nobody else looks at during the call.
pub(crate) unsafe fn put<T>(pointer: *mut T, value: T, name: &str) -> Result<(), Failure> {
    // SAFETY: as the caller says, of one.
    unsafe { put_at(pointer, 0, 1, value, name) }
}

/// Puts a value into an array of C's.
///
/// # Safety
/// If it is not null there is room for `count` values, which nobody else looks at during the call.
pub(crate) unsafe fn put_at<T>(pointer: *mut T, at: usize, count: usize, value: T, name: &str) -> Result<(), Failure> {
    check(pointer, count, name)?;
    if at >= count {
        return Err(Failure::invalid(format!("{name} has no place {at}")));
    }
    // SAFETY: within the array, whose bytes were checked not to wrap around.
    let place = unsafe { pointer.add(at) };
    // SAFETY: not null, aligned, and the caller says that it is its own. Nothing is dropped.
    unsafe { place.write(value) };
    Ok(())
}

/// That an argument is there, before work is done whose result goes to it.
pub(crate) fn must_be_there<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    check(pointer, 1, name)
}

/// That there may be `count` values behind a pointer.
pub(crate) fn check<T>(pointer: *const T, count: usize, name: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::null(name));
    }
    if !pointer.is_aligned() {
        return Err(Failure::invalid(format!("{name} is not aligned")));
    }
    let fits = count.checked_mul(size_of::<T>()).is_some_and(|bytes| bytes <= isize::MAX.cast_unsigned());
    if fits { Ok(()) } else { Err(Failure::invalid(format!("{name} is longer than memory"))) }
}
