//! Standard error, which may block forever: its reader may be stopped, or a pipe may be full.
//!
//! Only one thread writes to it. All other threads and the log hand their lines over to that thread. Therefore, output
//! cannot delay the supervision of a command or the keep-alive of its lock.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

/// The maximum number of lines that wait for the reader. Further lines are lost.
const MAX_WAITING: usize = 4096;

/// How long the program waits for the reader before it ends.
const MAX_FLUSH: Duration = Duration::from_secs(1);

static WRITER: OnceLock<Sender<Message>> = OnceLock::new();

enum Message {
    Text(Vec<u8>),
    /// Dropped by the thread when all text before it is written.
    Flush(Sender<()>),
}

/// Starts the thread that writes.
pub(crate) fn start() -> io::Result<()> {
    let (sender, messages) = bounded(MAX_WAITING);
    thread::Builder::new().name("stderr".to_owned()).spawn(move || write_all(&messages))?;
    // Fails only if the thread was already started.
    let _ = WRITER.set(sender);
    Ok(())
}

fn write_all(messages: &Receiver<Message>) {
    for message in messages {
        match message {
            // Without a reader, the text is lost.
            Message::Text(text) => drop(io::stderr().lock().write_all(&text)),
            Message::Flush(done) => drop(done),
        }
    }
}

/// Writes a line `zklock: …` to standard error. Does not block. The line is lost if too many lines wait.
pub(crate) fn complain(message: &str) {
    send(format!("zklock: {message}\n").into_bytes());
}

fn send(text: Vec<u8>) {
    if let Some(writer) = WRITER.get() {
        let _ = writer.try_send(Message::Text(text));
    }
}

/// Waits until all lines are written, for [`MAX_FLUSH`] at most.
pub(crate) fn flush() {
    let Some(writer) = WRITER.get() else { return };
    let end = Instant::now() + MAX_FLUSH;
    let (done, is_done) = bounded(0);
    if writer.send_deadline(Message::Flush(done), end).is_ok() {
        let _ = is_done.recv_deadline(end);
    }
}

/// The target of the log, which writes each record in one piece.
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
