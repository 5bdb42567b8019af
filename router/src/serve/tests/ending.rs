//! Tests the server's shutdown with clients that would delay it.

use super::*;

/// Starts a server with a grace period that is longer than any test.
async fn start_with_long_grace(script: Script) -> TestServer {
    let options =
        ServeOptions { connections: generous_limits(), grace: test_timeout() * 4, ..default_options() };
    start_with(script, RequestLimits::default(), options).await
}

#[tokio::test]
async fn an_incomplete_request_does_not_delay_the_shutdown() {
    let server = start_with_long_grace(Script::Say("x".into())).await;
    let (mut body, mut head, mut silent) =
        (server.connect().await, server.connect().await, server.connect().await);
    write(
        &mut body,
        "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nexpect: 100-continue\r\ncontent-length: 100\r\n\r\n",
    )
    .await;
    // The route waits for the body from now on.
    assert!(read_headers(&mut body).await.starts_with("HTTP/1.1 100"));
    write(&mut body, "{").await;
    for client in [&mut head, &mut silent] {
        write(client, HEALTH).await;
        read_headers(client).await;
    }
    write(&mut head, "POST /generate HTTP/1.1\r\nhost:").await;
    server.stop.send(()).unwrap();
    let text = read_to_close(&mut body).await;
    assert!(text.starts_with("HTTP/1.1 503") && text.contains("Server is shutting down"), "{text}");
    assert!(text.contains("connection: close"), "{text}");
    assert_eq!(read_to_close(&mut head).await, "");
    assert_eq!(read_to_close(&mut silent).await, "");
    timeout(test_timeout(), server.ended).await.expect("the server ends").unwrap().unwrap();
    assert!(TcpStream::connect(server.address).await.is_err(), "the port is closed");
}

#[tokio::test]
async fn an_open_http2_connection_does_not_delay_the_shutdown() {
    let server = start_with_long_grace(Script::Say("x".into())).await;
    let mut client = server.connect().await;
    // The client sends a preface and empty settings, and no other frame.
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut settings = [0; 9];
    client.read_exact(&mut settings).await.unwrap();
    server.stop.send(()).unwrap();
    timeout(test_timeout(), server.ended).await.expect("the server ends").unwrap().unwrap();
}
