//! Standard error, which may block for ever: its reader may be stopped, and a pipe may be full.
//!
//! One thread writes to it. All others, those of the library's log as well, only hand lines over.
//! So no output stops the supervision of a command, or the keep-alive of its lock.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

/// The largest number of lines that wait for the reader. Further ones are lost.
const MAX_WAITING: usize = 4096;

/// The longest time for which the end of the program waits for the reader.
const MAX_FLUSH: Duration = Duration::from_secs(1);

static WRITER: OnceLock<Sender<Message>> = OnceLock::new();

enum Message {
    Text(Vec<u8>),
    /// Dropped when all text before it is written.
    Flush(Sender<()>),
}

/// Starts the thread.
pub(crate) fn start() -> io::Result<()> {
    let (sender, messages) = bounded(MAX_WAITING);
    thread::Builder::new().name("stderr".to_owned()).spawn(move || write_all(&messages))?;
    // Fails only if it was started before.
    let _ = WRITER.set(sender);
    Ok(())
}

fn write_all(messages: &Receiver<Message>) {
    for message in messages {
        match message {
            // Without a reader it is lost.
            Message::Text(text) => drop(io::stderr().lock().write_all(&text)),
            Message::Flush(done) => drop(done),
        }
    }
}

/// Writes a line. Does not block, and loses the line if nobody reads.
pub(crate) fn complain(message: &str) {
    send(format!("zklock: {message}\n").into_bytes());
}

fn send(text: Vec<u8>) {
    if let Some(writer) = WRITER.get() {
        let _ = writer.try_send(Message::Text(text));
    }
}

/// Waits until everything is written, but not for long.
pub(crate) fn flush() {
    let Some(writer) = WRITER.get() else { return };
    let end = Instant::now() + MAX_FLUSH;
    let (done, is_done) = bounded(0);
    if writer.send_deadline(Message::Flush(done), end).is_ok() {
        let _ = is_done.recv_deadline(end);
    }
}

/// The target of the log, which writes each record at once.
#[derive(Debug)]
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        send(record.to_vec());
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
