//! A web server of a few lines: fixed answers to fixed paths, and a list of what was asked.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, spawn};

/// What to answer.
#[derive(Clone, Default)]
pub struct Reply {
    /// 200 where it isn't said.
    pub status: Option<u16>,
    /// Headers beside the length.
    pub headers: Vec<(&'static str, String)>,
    /// What is sent.
    pub body: Vec<u8>,
    /// How many bytes are promised, where that isn't what is sent.
    pub promised: Option<usize>,
    /// Whether the connection stays open and silent after the body.
    pub stalls: bool,
}

impl Reply {
    pub fn of(body: impl Into<Vec<u8>>) -> Self {
        Self { body: body.into(), ..Self::default() }
    }

    pub fn status(status: u16) -> Self {
        Self { status: Some(status), ..Self::default() }
    }

    pub fn redirect(to: &str) -> Self {
        Self::status(302).with("Location", to)
    }

    pub fn with(mut self, header: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((header, value.into()));
        self
    }
}

/// A server on this machine; it ends with this value.
pub struct Server {
    pub address: String,
    asked: Arc<Mutex<Vec<(String, bool)>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn new<const N: usize>(replies: [(&str, Reply); N]) -> Self {
        let replies: HashMap<String, Reply> =
            replies.into_iter().map(|(path, reply)| (path.to_owned(), reply)).collect();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let (asked, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (log, stopped) = (Arc::clone(&asked), Arc::clone(&stop));
        let thread = spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming().flatten() {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                // A client may hang up at any time.
                let Some((path, token)) = request(&stream) else { continue };
                let reply = replies.get(&path).cloned().unwrap_or(Reply::status(404));
                log.lock().expect("the log").push((path, token));
                let _ = answer(&stream, &reply);
                if reply.stalls {
                    silent.push(stream);
                }
            }
        });
        Self { address, asked, stop, thread: Some(thread) }
    }

    /// The paths asked for so far.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("the log").iter().map(|(path, _)| path.clone()).collect()
    }

    /// Whether any request carried credentials.
    pub fn saw_a_token(&self) -> bool {
        self.asked.lock().expect("the log").iter().any(|(_, token)| *token)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address.trim_start_matches("http://"));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The path of a request, and whether it has an `Authorization` header.
fn request(stream: &TcpStream) -> Option<(String, bool)> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    Some((path, headers.iter().any(|header| header.to_ascii_lowercase().starts_with("authorization:"))))
}

fn answer(mut stream: &TcpStream, reply: &Reply) -> std::io::Result<()> {
    let length = reply.promised.unwrap_or(reply.body.len());
    write!(stream, "HTTP/1.1 {} x\r\nContent-Length: {length}\r\nConnection: close\r\n", reply.status.unwrap_or(200))?;
    for (name, value) in &reply.headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    stream.write_all(b"\r\n")?;
    stream.write_all(&reply.body)
}
