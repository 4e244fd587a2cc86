//! Directories whose counter is close to its end.
//!
//! A test cannot create two billion children. Instead, it writes into the server's log a transaction that sets the
//! counter.

use std::fs;

use super::server::Server;

/// Restarts the server with a child `last` in this directory, after which `next` is the next sequence number.
pub fn advance(server: &Server, dir: &str, next: i32) {
    // This is the next number after the last transaction in the server's own log.
    let zxid = server.zxid() + 1;
    server.stop();
    let log = server.dir().join(format!("data/version-2/log.{zxid:x}"));
    fs::write(log, log_of_a_create(zxid, &format!("{dir}/last"), next)).unwrap();
    server.restart();
}

/// Returns a transaction log in the format of ZooKeeper's `FileTxnLog`. Its only transaction is a create that
/// sets the parent's counter to `cversion`.
fn log_of_a_create(zxid: i64, path: &str, cversion: i32) -> Vec<u8> {
    const CREATE: i32 = 1;
    let mut entry = Vec::new();
    // The header: session, request, transaction, time, type.
    entry.extend(0_i64.to_be_bytes());
    entry.extend(0_i32.to_be_bytes());
    entry.extend(zxid.to_be_bytes());
    entry.extend(0_i64.to_be_bytes());
    entry.extend(CREATE.to_be_bytes());
    // The transaction: path, data, the ACL (all permissions for everyone), whether the znode is ephemeral, the
    // parent's counter.
    push_text(&mut entry, path);
    push_text(&mut entry, "");
    entry.extend(1_i32.to_be_bytes());
    entry.extend(31_i32.to_be_bytes());
    push_text(&mut entry, "world");
    push_text(&mut entry, "anyone");
    entry.push(0);
    entry.extend(cversion.to_be_bytes());

    let mut log = b"ZKLG".to_vec();
    // The format version and the id of the database.
    log.extend(2_i32.to_be_bytes());
    log.extend(0_i64.to_be_bytes());
    log.extend(i64::from(adler32(&entry)).to_be_bytes());
    log.extend(i32::try_from(entry.len()).unwrap().to_be_bytes());
    log.extend(entry);
    log.push(b'B');
    log
}

fn push_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend(i32::try_from(text.len()).unwrap().to_be_bytes());
    bytes.extend(text.as_bytes());
}

/// Returns the checksum of RFC 1950.
fn adler32(bytes: &[u8]) -> u32 {
    const BASE: u32 = 65_521;
    let (sum, sums) = bytes.iter().fold((1, 0), |(sum, sums), byte| {
        let sum = (sum + u32::from(*byte)) % BASE;
        (sum, (sums + sum) % BASE)
    });
    (sums << 16) | sum
}
