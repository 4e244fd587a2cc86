//! Listing a long queue: the requests in it, with their age and their data.

use zookeeper_recipes_lock::WriteLock;
use zookeeper_recipes_lock::queue::LockDirectory;

use crate::measure::{Cycle, Plan, compare};
use crate::table::{print_comparison, print_title};
use crate::{ROOT, raw, session};

/// A listing must not be slower than reading the znodes one after the other.
const AIM: f64 = 1.0;

pub(crate) fn run(plan: &Plan, connect_string: &str, waiting: usize) {
    let dir = format!("{ROOT}/queue-{waiting}");
    let queuing = session(connect_string);
    let queue: Vec<WriteLock> = (0..waiting)
        .map(|_| {
            let lock = WriteLock::new(&queuing, &dir).expect("the path is valid");
            lock.lock().expect("it joins the queue");
            lock
        })
        .collect();
    let directory = LockDirectory::new(&session(connect_string), &dir).expect("the path is valid");
    let zk = raw::connect(connect_string);
    let list = || assert_eq!(directory.contenders().expect("the server answers").len(), queue.len());
    let list_raw = || {
        for name in zk.get_children(&dir).expect("the directory exists") {
            zk.get_data(&format!("{dir}/{name}")).expect("it exists");
        }
    };
    let sides: &mut [Vec<Cycle<'_>>] = &mut [vec![Box::new(list)], vec![Box::new(list_raw)]];
    let times = compare(plan, sides);
    print_title(&format!("who is in a queue of {waiting}"), "µs per listing");
    print_comparison("contenders()", &times[0], &times[1], None, AIM);
}
