//! Callbacks that two threads post and deliver.

use loom::sync::Arc;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use crate::mailbox::Mailbox;

struct Listener {
    mailbox: Mailbox<(usize, usize)>,
    is_called: AtomicBool,
    seen: Mutex<Vec<(usize, usize)>>,
}

impl Listener {
    fn new() -> Arc<Listener> {
        let (is_called, seen) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        Arc::new(Listener { mailbox: Mailbox::new(), is_called, seen })
    }

    fn post_and_deliver(&self, item: (usize, usize)) {
        self.mailbox.post(item);
        self.mailbox.deliver(|item| {
            assert!(self.mailbox.delivers_here());
            assert!(!self.is_called.swap(true, Ordering::AcqRel), "two calls at once");
            self.seen.lock().unwrap().push(item);
            self.is_called.store(false, Ordering::Release);
        });
    }
}

#[test]
fn each_item_is_delivered_once_in_order_one_at_a_time() {
    loom::model(|| {
        let listener = Listener::new();
        let other = Arc::clone(&listener);
        let other = thread::spawn(move || {
            other.post_and_deliver((1, 0));
            other.post_and_deliver((1, 1));
        });
        listener.post_and_deliver((0, 0));
        other.join().unwrap();
        assert!(!listener.mailbox.is_waiting());
        let seen = listener.seen.lock().unwrap();
        let of_other: Vec<usize> = seen.iter().filter(|item| item.0 == 1).map(|item| item.1).collect();
        assert_eq!((seen.len(), of_other), (3, vec![0, 1]), "{seen:?}");
    });
}
