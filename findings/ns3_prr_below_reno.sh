#!/usr/bin/env bash
# ns-3 3.44: with its default loss recovery (proportional rate reduction) a Reno flow over a short queue stays 16 % below
# the rate that its sawtooth allows: 3/4 (1+b)^2 / (1+b+b^2) of the link, for a queue of b bandwidth-delay products. With
# TcpClassicRecovery it is within 2 %. Linux, which has proportional rate reduction too, reaches the sawtooth's rate.
# Whoever validates an emulator against ns-3's default settings finds the emulator too fast by that much.
# Expected: the choice of recovery changes how a single loss is repaired, and not the flow's mean rate over minutes.
# Needs g++ and no root. About a minute.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check ns3==3.44.post0
cat > flow.cc <<'CPP'
#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

#include <iostream>

using namespace ns3;

// One Reno flow over 100 Mbit/s, a round trip of 5 ms and a drop-tail queue of FRAMES; prints its goodput in Mbit/s.
int
main(int count, char** words)
{
    const double from_s = 20;
    const double to_s = 140;
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", StringValue("ns3::TcpLinuxReno"));
    if (count > 2)
    {
        Config::SetDefault("ns3::TcpL4Protocol::RecoveryType", StringValue(words[2]));
    }
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(1448));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(1 << 25));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(1 << 25));

    NodeContainer nodes(2);
    PointToPointHelper link;
    link.SetDeviceAttribute("DataRate", StringValue("100Mbps"));
    link.SetChannelAttribute("Delay", StringValue("2.5ms"));
    link.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue(std::string(words[1]) + "p"));
    NetDeviceContainer devices = link.Install(nodes);
    InternetStackHelper().Install(nodes);
    Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.0");
    Ipv4InterfaceContainer interfaces = addresses.Assign(devices);
    TrafficControlHelper().Uninstall(devices); // the device's queue is the only one

    BulkSendHelper sender("ns3::TcpSocketFactory", InetSocketAddress(interfaces.GetAddress(1), 9));
    sender.SetAttribute("MaxBytes", UintegerValue(0));
    sender.Install(nodes.Get(0));
    PacketSinkHelper receiver("ns3::TcpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), 9));
    Ptr<PacketSink> sink = receiver.Install(nodes.Get(1)).Get(0)->GetObject<PacketSink>();
    uint64_t before = 0;
    Simulator::Schedule(Seconds(from_s), [&] { before = sink->GetTotalRx(); });
    Simulator::Stop(Seconds(to_s));
    Simulator::Run();
    std::cout << (sink->GetTotalRx() - before) * 8 / (to_s - from_s) / 1e6 << std::endl;
    Simulator::Destroy();
    return 0;
}
CPP
package=$(echo "$folder"/venv/lib/python*/site-packages/ns3)
core=$(basename "$package"/lib64/libns3*-core.so)
prefix=${core#lib}
prefix=${prefix%core.so}
libraries=()
for name in core network internet point-to-point applications traffic-control; do libraries+=("-l$prefix$name"); done
g++ -std=c++20 -O1 -I"$package/include" flow.cc -o flow -L"$package/lib64" "${libraries[@]}" \
    -Wl,-rpath,"$package/lib64" -Wl,--allow-shlib-undefined
frames=10 # a quarter of the 41 frames that fill the link for a round trip
default=$(./flow $frames)
classic=$(./flow $frames ns3::TcpClassicRecovery)
python3 - "$default" "$classic" <<'PYTHON'
import sys

default, classic = map(float, sys.argv[1:])
b = 0.25
sawtooth = 100 * 1448 / 1502 * 0.75 * (1 + b) ** 2 / (1 + b + b * b)
print(f"goodput of Reno: {default:.1f} Mbit/s by default, {classic:.1f} with TcpClassicRecovery; the sawtooth's {sawtooth:.1f}")
assert default < 0.94 * classic, "the default recovery is no longer slower"
assert abs(classic / sawtooth - 1) < 0.06, "the classic recovery is off the sawtooth"
PYTHON
