//! Containment of panics. External code (the client, listeners, closures, the logger) may panic, but the thread that
//! calls it must continue.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::support::lock_order;

/// Runs code that may panic, and returns the panic's message as an error.
///
/// The caller must repair whatever the code left half done.
pub fn contain<T>(code: impl FnOnce() -> T) -> Result<T, String> {
    lock_order::assert_none_held();
    catch_unwind(AssertUnwindSafe(code)).map_err(|payload| {
        let message = message_of(&*payload);
        discard(payload);
        message
    })
}

/// Drops the payload of a panic. Dropping it may panic, too. The payload of the second panic is leaked, because
/// dropping it could panic again, and so on forever.
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(another);
    }
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "a panic without a message".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::resume_unwind;

    /// A panic payload that panics when it is dropped, with a payload of the same kind.
    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            resume_unwind(Box::new(Bomb));
        }
    }

    #[test]
    fn contain_returns_the_value_or_the_panic_message() {
        assert_eq!(contain(|| 7), Ok(7));
        let messages = [
            contain(|| resume_unwind(Box::new("on purpose"))),
            contain(|| resume_unwind(Box::new("on purpose".to_owned()))),
            contain(|| resume_unwind(Box::new(7))),
        ];
        let expected = ["on purpose", "on purpose", "a panic without a message"];
        assert_eq!(messages.map(Result::<(), _>::unwrap_err), expected);
    }

    #[test]
    fn payload_that_panics_when_dropped_is_contained() {
        assert!(contain(|| resume_unwind(Box::new(Bomb))).is_err());
    }
}
