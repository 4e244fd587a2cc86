//! Free ports. The functions panic if there is none.

use std::net::TcpListener;

use super::test_server::net;

/// Returns a free loopback port. Another process may take the port before the caller does.
pub fn free_port() -> u16 {
    net::free_port().expect("some port is free")
}

/// Binds a free port.
pub fn listen() -> TcpListener {
    net::listen().expect("some port is free")
}
