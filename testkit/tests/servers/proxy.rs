//! Each fault of the proxy, on a plain echo server. Tests wait for events, never for a time to
//! pass; one that hangs is ended by `within`, and the one upper bound on a duration is generous.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use fencelock_testkit::proxy::{
    AfterDrop, Close, Direction, DropReply, Front, NetworkFault, NewConnections, Proxy, Stats,
    framing,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use ends::*;

mod ends;

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn a_half_closed_connection_still_delivers_the_answer() {
    let (proxy, mut client) = echo_through_proxy().await;
    client.write_all(b"last words").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"last words");
    within(proxy.connections(0)).await;
}

#[tokio::test]
async fn cut_closes_by_fin_and_refuses_new_connections() {
    let (proxy, mut client) = echo_through_proxy().await;
    within(proxy.cut(Close::Fin, NewConnections::Refused)).await.unwrap();
    assert_eq!(proxy.stats().open, 0);
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"");
    let error = TcpStream::connect(proxy.addr()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);

    within(proxy.heal()).await.unwrap();
    assert_eq!(echo(&mut connect(proxy.addr()).await, b"again").await, b"again");
}

#[tokio::test]
async fn what_was_passed_on_before_a_fin_still_arrives() {
    const WINDOW: usize = 1024 * 1024;
    const UNREAD: usize = 64 * 1024;
    let (_server, proxy, mut client, mut peer) = both_ends().await;
    // More than the client's socket takes, so that some of it is still in the proxy's.
    let flood = tokio::spawn(async move { while peer.write_all(&[7; 4096]).await.is_ok() {} });
    within(proxy.wait_for(|Stats { to_client, .. }| {
        to_client.received > to_client.forwarded + WINDOW as u64 / 2
    }))
    .await;
    // More than the proxy takes in: closing a socket with unread bytes resets the connection.
    proxy.stall(Direction::ToServer);
    within(client.write_all(&vec![7; WINDOW + UNREAD])).await.unwrap();
    within(proxy.wait_for(|stats| stats.to_server.received > 1000 * 1000)).await;

    within(proxy.close_connections(Close::Fin)).await;
    let received = read_to_end(&mut client).await.unwrap();
    assert_eq!(received.len() as u64, proxy.stats().to_client.forwarded);
    within(flood).await.unwrap();
}

#[tokio::test]
async fn reset_reaches_both_peers_and_spares_new_connections() {
    let (server, proxy, mut client, mut peer) = both_ends().await;
    within(proxy.connections(1)).await;

    within(proxy.close_connections(Close::Reset)).await;
    for end in [&mut client, &mut peer] {
        assert_eq!(read_to_end(end).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    connect(proxy.addr()).await;
    within(server.accept()).await.unwrap();
}

#[tokio::test]
async fn a_clients_reset_reaches_the_server() {
    let (_server, proxy, client, mut peer) = both_ends().await;
    within(proxy.connections(1)).await;
    client.set_zero_linger().unwrap();
    drop(client);
    assert_eq!(read_to_end(&mut peer).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_server_that_writes_to_a_client_that_has_gone_is_reset() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(server.local_addr().unwrap()).await.unwrap();
    drop(connect(proxy.addr()).await);
    let (mut peer, _) = within(server.accept()).await.unwrap();
    assert_eq!(read_to_end(&mut peer).await.unwrap(), b"");
    within(async {
        while peer.write_all(b"are you there?").await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    within(proxy.connections(0)).await;
}

#[tokio::test]
async fn without_a_server_the_client_is_reset() {
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let proxy = Proxy::start(unused.to_string()).await.unwrap();
    let mut client = connect(proxy.addr()).await;
    assert_eq!(read_to_end(&mut client).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(proxy.stats().open, 0);
}

#[tokio::test]
async fn what_is_stalled_arrives_after_healing() {
    let (proxy, mut client) = echo_through_proxy().await;
    proxy.stall(Direction::ToClient);
    client.write_all(b"patience").await.unwrap();
    let stats = within(proxy.wait_for(|stats| stats.to_client.received == 8)).await;
    assert_eq!(stats.to_client.forwarded, 0);
    within(proxy.heal()).await.unwrap();
    assert_eq!(read(&mut client, 8).await, b"patience");
}

#[tokio::test]
async fn delay_keeps_the_order_and_does_not_add_up() {
    const DELAY: Duration = Duration::from_millis(400);
    const CHUNKS: u8 = 50;
    let (proxy, mut client) = echo_through_proxy().await;
    proxy.delay(Direction::ToServer, DELAY);
    let start = Instant::now();
    for n in 0..CHUNKS {
        client.write_all(&[n]).await.unwrap();
        within(proxy.wait_for(|stats| stats.to_server.received > u64::from(n))).await;
    }
    assert_eq!(read(&mut client, CHUNKS.into()).await, (0..CHUNKS).collect::<Vec<_>>());
    let elapsed = start.elapsed();
    assert!(elapsed >= DELAY, "{elapsed:?}");
    assert!(elapsed < DELAY * u32::from(CHUNKS) / 2, "one after the other: {elapsed:?}");
}

/// Of several round trips the shortest: a busy machine makes any of them longer.
async fn shortest_echo(client: &mut TcpStream) -> Duration {
    let mut shortest = Duration::MAX;
    for _ in 0..20 {
        let start = Instant::now();
        assert_eq!(echo(client, b"there and back").await, b"there and back");
        shortest = shortest.min(start.elapsed());
    }
    shortest
}

/// So long that one of twenty without it is shorter, on a busy machine too.
#[tokio::test]
async fn a_round_trip_takes_what_was_set_and_healing_keeps_it() {
    const SET: Duration = Duration::from_millis(40);
    let (proxy, mut client) = echo_through_proxy().await;
    proxy.set_round_trip(SET).unwrap();
    for _ in 0..2 {
        let shortest = shortest_echo(&mut client).await;
        assert!(shortest >= SET, "{shortest:?}");
        within(proxy.heal()).await.unwrap();
    }
    proxy.set_round_trip(Duration::ZERO).unwrap();
    let shortest = shortest_echo(&mut client).await;
    assert!(shortest < SET, "{shortest:?}");
}

#[tokio::test]
async fn what_waits_is_bounded_and_nothing_of_it_is_lost() {
    const FLOOD: usize = 16 * 1024 * 1024;
    const BOUND: u64 = 1024 * 1024 + 64 * 1024;
    let (proxy, client) = echo_through_proxy().await;
    proxy.stall(Direction::ToServer);
    let (mut reader, mut writer) = client.into_split();
    let flood = tokio::spawn(async move {
        writer.write_all(&vec![7; FLOOD]).await.unwrap();
        writer
    });
    within(proxy.wait_for(|stats| stats.to_server.received >= 1000 * 1000)).await;
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(proxy.stats().to_server.received <= BOUND, "{:?}", proxy.stats());
    }
    within(proxy.heal()).await.unwrap();
    let mut received = vec![0; FLOOD];
    within(reader.read_exact(&mut received)).await.unwrap();
    assert!(received.iter().all(|&byte| byte == 7));
    within(flood).await.unwrap();
}

#[tokio::test]
async fn exactly_the_nth_reply_is_dropped_before_a_fin() {
    let (proxy, mut client) = lines_through_proxy().await;
    assert_eq!(echo(&mut client, b"before\n").await, b"before\n");
    proxy.drop_reply(DropReply::nth(3, AfterDrop::Fin)).unwrap();
    // However TCP cuts it: three requests in one chunk and a bit.
    client.write_all(b"one\ntwo\nthree\nfo").await.unwrap();
    within(proxy.dropped_reply()).await;
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"one\ntwo\n");
    let stats = proxy.stats();
    assert_eq!((stats.requests, stats.replies, stats.dropped_replies), (4, 3, 1));
    // It strikes once.
    let mut next = connect(proxy.addr()).await;
    assert_eq!(echo(&mut next, b"1\n2\n3\n4\n").await, b"1\n2\n3\n4\n");
}

#[tokio::test]
async fn only_matching_requests_count_and_earlier_ones_do_not() {
    let (proxy, mut client) = lines_through_proxy().await;
    proxy.stall(Direction::ToClient);
    client.write_all(b"release early\n").await.unwrap();
    within(proxy.wait_for(|stats| stats.requests == 1)).await;
    let second_release = DropReply::nth(2, AfterDrop::Fin).matching(|r| r.starts_with(b"release"));
    proxy.drop_reply(second_release).unwrap();
    client.write_all(b"renew\nrelease a\nrenew\nrelease b\nrenew\n").await.unwrap();
    within(proxy.wait_for(|stats| stats.requests == 6)).await;
    assert_eq!(proxy.stats().dropped_replies, 0);
    proxy.pass(Direction::ToClient);
    within(proxy.dropped_reply()).await;
    let expected = b"release early\nrenew\nrelease a\nrenew\n";
    assert_eq!(read_to_end(&mut client).await.unwrap(), expected);
}

#[tokio::test]
async fn replies_cannot_be_dropped_without_a_framing() {
    let (proxy, _client) = echo_through_proxy().await;
    let error = proxy.drop_reply(DropReply::first(AfterDrop::Fin)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let (framed, _client) = lines_through_proxy().await;
    let error = framed.drop_reply(DropReply::nth(0, AfterDrop::Fin)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// However TCP cuts what they say.
#[tokio::test]
async fn servers_behind_a_front_appear_at_its_address() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let front = Front::before([server], framing::lines).await.unwrap();
    let (address, proxy) = (front.addr_of(server), &front.proxies()[0]);
    assert_eq!(address, proxy.addr());
    let mut client = connect(address).await;
    let (mut says, _) = within(listener.accept()).await.unwrap();
    let (sent, seen) = (format!("-MOVED 1 {server}\n"), format!("-MOVED 1 {address}\n"));
    let mut received = 0;
    for cut in 1..sent.len() {
        for part in [&sent[..cut], &sent[cut..]] {
            says.write_all(part.as_bytes()).await.unwrap();
            received += part.len() as u64;
            within(proxy.wait_for(|stats| stats.to_client.received == received)).await;
        }
        assert_eq!(read(&mut client, seen.len()).await, seen.as_bytes(), "cut at {cut}");
    }
}

#[tokio::test]
async fn one_reply_is_mangled() {
    let (proxy, mut client) = lines_through_proxy().await;
    proxy.mangle_next_reply(|reply| reply[0] ^= 0xFF);
    client.write_all(b"one\ntwo\n").await.unwrap();
    assert_eq!(read(&mut client, 8).await, [&[!b'o'][..], b"ne\ntwo\n"].concat());
    within(proxy.mangled_reply()).await;
}

#[tokio::test]
async fn garbage_is_injected_at_a_message_boundary() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let proxy = Proxy::framed(address, framing::lines).await.unwrap();
    let (mut client, mut peer) = ends(&server, &proxy).await;
    peer.write_all(b"whole\nhal").await.unwrap();
    within(proxy.wait_for(|stats| stats.to_client.received == 9)).await;
    assert_eq!(proxy.inject(b"\xFFgarbage"), 1);
    peer.write_all(b"f\n").await.unwrap();
    assert_eq!(read(&mut client, 19).await, b"whole\n\xFFgarbagehalf\n");
}

#[tokio::test]
async fn flapping_continues_until_healed() {
    let (proxy, mut client) = echo_through_proxy().await;
    let (down, up) = (Duration::from_millis(5), Duration::from_millis(5));
    within(proxy.flap(down, up, Close::Reset, NewConnections::Refused)).await.unwrap();
    assert_eq!(read_to_end(&mut client).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    within(proxy.wait_for(|stats| stats.cuts >= 4)).await;

    within(proxy.heal()).await.unwrap();
    let mut client = connect(proxy.addr()).await;
    within(proxy.connections(1)).await;
    let cuts = proxy.stats().cuts;
    assert_eq!(echo(&mut client, b"steady").await, b"steady");
    assert_eq!(proxy.stats().cuts, cuts);
}

#[tokio::test]
async fn dropping_the_proxy_ends_everything() {
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let server = echo_server().await;
    let before = alive();
    let proxy = Proxy::start(server).await.unwrap();
    let address = proxy.addr();
    let mut client = connect(address).await;
    assert_eq!(echo(&mut client, b"hello").await, b"hello");
    within(proxy.flap(HOUR, HOUR, Close::Fin, NewConnections::Closed)).await.unwrap();
    connect(address).await;
    proxy.delay(Direction::ToServer, HOUR);
    drop(proxy);
    within(async {
        while alive() > before {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"");
    let error = TcpStream::connect(address).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn a_narrow_line_takes_its_time_in_one_direction_and_keeps_every_byte() {
    let (_server, proxy, mut client, mut peer) = both_ends().await;
    let bytes: Vec<u8> = (0..20_000u32).map(|n| n as u8).collect();
    proxy.throttle(Direction::ToServer, 50_000);
    let began = Instant::now();
    client.write_all(&bytes).await.unwrap();
    assert_eq!(read(&mut peer, bytes.len()).await, bytes);
    // What is written last has not taken its time yet.
    assert!(began.elapsed() > Duration::from_millis(350), "in {:?}", began.elapsed());
    // The other direction is as wide as ever, and so is this one afterwards.
    proxy.throttle(Direction::ToServer, 1);
    peer.write_all(&bytes).await.unwrap();
    assert_eq!(read(&mut client, bytes.len()).await, bytes);
    client.write_all(&bytes).await.unwrap();
    within(proxy.heal()).await.unwrap();
    assert_eq!(read(&mut peer, bytes.len()).await, bytes);
}

#[tokio::test]
async fn a_torn_reply_ends_in_its_middle_with_its_connection() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::framed(server.local_addr().unwrap(), framing::lines).await.unwrap();
    let (mut client, mut peer) = ends(&server, &proxy).await;
    within(proxy.apply(NetworkFault::Torn)).await.unwrap();
    client.write_all(b"one\ntwo\n").await.unwrap();
    read(&mut peer, 8).await;
    peer.write_all(b"eins...\nzwei...\n").await.unwrap();
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"eins");
}
