package kamaji

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"
)

const (
	keyBits          = 2048
	leafValidity     = 8760 * time.Hour
	caValidity       = 87600 * time.Hour
	notBeforeSkew    = 5 * time.Minute
	pemCertificate   = "CERTIFICATE"
	pemRSAPrivateKey = "RSA PRIVATE KEY"
	pemPublicKey     = "PUBLIC KEY"
)

var errNotPEM = errors.New("not a PEM block of the expected type")

// keyPair is a certificate with its key, parsed and as files.
type keyPair struct {
	cert    *x509.Certificate
	key     crypto.Signer
	certPEM []byte
	keyPEM  []byte
}

// leaf says what a certificate is for.
type leaf struct {
	subject  pkix.Name
	dnsNames []string
	ips      []net.IP
	usages   []x509.ExtKeyUsage
	from, to time.Time
}

func newKey() (*rsa.PrivateKey, []byte, error) {
	key, err := rsa.GenerateKey(rand.Reader, keyBits)
	if err != nil {
		return nil, nil, fmt.Errorf("generate key: %w", err)
	}
	return key, encodeKey(key), nil
}

func encodeKey(key *rsa.PrivateKey) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemRSAPrivateKey, Bytes: x509.MarshalPKCS1PrivateKey(key)})
}

func encodePublicKey(key *rsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("encode public key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemPublicKey, Bytes: der}), nil
}

// newCA makes a self-signed authority, whose own name is also its only SAN.
func newCA(commonName string, from time.Time) (*keyPair, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: commonName},
		DNSNames:              []string{commonName},
		NotBefore:             from.Add(-notBeforeSkew),
		NotAfter:              from.Add(caValidity),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		SubjectKeyId:          keyID(key),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign authority %s: %w", commonName, err)
	}
	return encodePair(der, key, keyPEM)
}

// issue makes a key and a certificate for it, signed by the authority.
func (ca *keyPair) issue(l leaf) (*keyPair, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      l.subject,
		DNSNames:     l.dnsNames,
		IPAddresses:  l.ips,
		NotBefore:    l.from,
		NotAfter:     l.to,
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:  l.usages,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate %s: %w", l.subject.CommonName, err)
	}
	return encodePair(der, key, keyPEM)
}

// issued tells whether the certificate was signed by this authority.
func (ca *keyPair) issued(cert *x509.Certificate) bool {
	return cert.CheckSignatureFrom(ca.cert) == nil
}

func encodePair(der []byte, key crypto.Signer, keyPEM []byte) (*keyPair, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read back certificate: %w", err)
	}
	return &keyPair{
		cert: cert, key: key, keyPEM: keyPEM,
		certPEM: pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der}),
	}, nil
}

// parsePair reads a certificate and its key, PKCS#1, PKCS#8 or SEC 1.
func parsePair(certPEM, keyPEM []byte) (*keyPair, error) {
	cert, err := parseCertificate(certPEM)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(keyPEM)
	if block == nil {
		return nil, fmt.Errorf("private key: %w", errNotPEM)
	}
	key, err := parseKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	return &keyPair{cert: cert, key: key, certPEM: certPEM, keyPEM: keyPEM}, nil
}

func parseKey(der []byte) (crypto.Signer, error) {
	if key, err := x509.ParsePKCS1PrivateKey(der); err == nil {
		return key, nil
	}
	if key, err := x509.ParseECPrivateKey(der); err == nil {
		return key, nil
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("private key: %w", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("private key: type %T cannot sign", key)
	}
	return signer, nil
}

func parseCertificate(certPEM []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(certPEM)
	if block == nil || block.Type != pemCertificate {
		return nil, fmt.Errorf("certificate: %w", errNotPEM)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	return cert, nil
}

// missingSANs returns the wanted names that the certificate does not have.
func missingSANs(cert *x509.Certificate, wanted []string) []string {
	var missing []string
	for _, name := range wanted {
		if ip := net.ParseIP(name); ip != nil {
			if !slices.ContainsFunc(cert.IPAddresses, ip.Equal) {
				missing = append(missing, name)
			}
		} else if !slices.Contains(cert.DNSNames, name) {
			missing = append(missing, name)
		}
	}
	return missing
}

// splitSANs sorts names into DNS names (sorted) and addresses, without
// duplicates.
func splitSANs(names []string) (dns []string, ips []net.IP) {
	for _, name := range names {
		ip := net.ParseIP(name)
		switch {
		case ip == nil && name != "":
			dns = append(dns, name)
		case ip != nil && !slices.ContainsFunc(ips, ip.Equal):
			ips = append(ips, ip)
		}
	}
	slices.Sort(dns)
	return slices.Compact(dns), ips
}

func serialNumber() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 62))
	if err != nil {
		return nil, fmt.Errorf("choose serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}

func keyID(key *rsa.PrivateKey) []byte {
	sum := sha256.Sum256(x509.MarshalPKCS1PublicKey(&key.PublicKey))
	return sum[:20]
}
