//! The server's end, and clients that would put it off.

use super::*;

/// A server that gives its requests more time to end than any test has.
async fn start_patient(script: Script) -> Running {
    let options = ServeOptions { connections: patient(), grace: PATIENCE * 4, ..untouched() };
    start_with(script, Limits::default(), options).await
}

#[tokio::test]
async fn half_a_request_does_not_put_off_the_end() {
    let server = start_patient(Script::Say("x".into())).await;
    let (mut body, mut head, mut silent) =
        (server.connect().await, server.connect().await, server.connect().await);
    write(
        &mut body,
        "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{",
    )
    .await;
    for client in [&mut head, &mut silent] {
        write(client, HEALTH).await;
        answer(client).await;
    }
    write(&mut head, "POST /generate HTTP/1.1\r\nhost:").await;
    // Until the route waits for the body.
    sleep(QUICK).await;
    let since = Instant::now();
    server.stop.send(()).unwrap();
    let text = rest(&mut body).await;
    assert!(text.starts_with("HTTP/1.1 503") && text.contains("Server is shutting down"), "{text}");
    assert!(text.contains("connection: close"), "{text}");
    assert_eq!(rest(&mut head).await, "");
    assert_eq!(rest(&mut silent).await, "");
    timeout(PATIENCE, server.ended).await.expect("the server ends").unwrap().unwrap();
    assert!(since.elapsed() < PATIENCE, "long before the grace is over: {:?}", since.elapsed());
    assert!(TcpStream::connect(server.address).await.is_err(), "the port is closed");
}

#[tokio::test]
async fn an_http2_client_that_does_not_say_goodbye_does_not_put_off_the_end() {
    let server = start_patient(Script::Say("x".into())).await;
    let mut client = server.connect().await;
    // A preface and empty settings, and not one frame more.
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut settings = [0; 9];
    client.read_exact(&mut settings).await.unwrap();
    server.stop.send(()).unwrap();
    timeout(PATIENCE, server.ended).await.expect("the server ends").unwrap().unwrap();
}
